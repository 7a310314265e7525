/* The audit log's filter in the address, and what is known of its being whole, in words. */
import type { AuditState } from "../api/types";
import { count } from "./format";

/** What is asked for, by the parameter of the address and of the API. */
export const FILTERS = [
  { name: "actor", label: "Account", placeholder: "user:ada" },
  { name: "action", label: "Act", placeholder: "job.cancel or login.*" },
  { name: "subject", label: "Object", placeholder: "id of what it was done to" },
] as const;
export type AuditFilter = Partial<Record<"actor" | "action" | "subject" | "since" | "until", string>>;

/** A field of the browser's clock as an instant; "" for what is none. */
export function instant(local: string): string {
  const at = local === "" ? NaN : Date.parse(local);
  return Number.isNaN(at) ? "" : new Date(at).toISOString();
}

/** What is asked of the API: only what is filled in. */
export function filterOf(params: URLSearchParams): AuditFilter {
  const found: AuditFilter = {};
  for (const { name } of FILTERS) {
    const value = (params.get(name) ?? "").trim();
    if (value !== "") found[name] = value;
  }
  for (const name of ["since", "until"] as const) {
    const value = instant(params.get(name) ?? "");
    if (value !== "") found[name] = value;
  }
  return found;
}

/** `text`, then the time of the verification, then `more`. */
export interface Chain {
  tone: "ok" | "warn" | "bad";
  text: string;
  more: string;
}

/** Up to where the log is known to be whole; when that was found stands beside it. */
export function chainOf(state: AuditState): Chain {
  if (!state.verified || state.seq === null) return { tone: "warn", text: "Nobody has verified this log yet. An operator does each day (manage.py verify_audit).", more: "" };
  if (state.whole !== true) return { tone: "bad", text: `Not whole: ${count(state.broken)} ${state.broken === 1 ? "fault" : "faults"} up to row ${count(state.seq)}, found at`, more: `. The first: ${state.first_fault}.` };
  const newest = state.newest_seq ?? 0;
  if (newest < state.seq) return { tone: "bad", text: `Verified up to row ${count(state.seq)} at`, more: `; rows ${count(newest + 1)} to ${count(state.seq)} are gone since.` };
  const since = newest - state.seq;
  return { tone: "ok", text: `Verified up to row ${count(state.seq)} at`, more: since === 0 ? "; no row was sealed since." : `; ${count(since)} ${since === 1 ? "row was" : "rows were"} sealed since.` };
}
