/* Which XIDs the table of sources shows. */
import type { XidRule } from "../api/types";

export const XID_VIEWS = ["disagreements", "set here", "all"] as const;
export type XidView = (typeof XID_VIEWS)[number];

/** As the address says it; another word is the first view. */
export const xidView = (word: string | null): XidView => XID_VIEWS.find((view) => view === word) ?? "disagreements";

/** Those of a view whose number begins with what is typed, or whose words hold it. */
export function xidsShown(rows: readonly XidRule[], view: XidView, q: string): XidRule[] {
  const typed = q.trim().toLowerCase();
  return rows
    .filter((row) => (view === "disagreements" ? row.disagreements.length > 0 : view === "set here" ? row.site !== "" : true))
    .filter((row) => String(row.xid).startsWith(typed) || `${row.what} ${row.mnemonic}`.toLowerCase().includes(typed));
}
