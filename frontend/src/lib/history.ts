/* The history of a large job's replicas as rectangles: a row a slot, or some slots where there are more of them than rows, and a
   bar an incarnation. How much is drawn depends on the width and on how many incarnations there were, not on ranks. Pure;
   times are Unix ms, places px. */
import type { Replica } from "../api/types";

/** `state` "": which one it had is not kept. */
export type Incarnation = Pick<Replica, "id" | "attempt" | "index" | "incarnation" | "state_since" | "current" | "created_at"> & { state: Replica["state"] | "" };
export const INCARNATION_FIELDS = "id,attempt,index,incarnation,state,state_since,current,created_at";

/** `before`: an earlier state of one that is open, or an incarnation that is over; which states it had is not kept. */
export type BarKind = "before" | "contributing" | "starting" | "catching up" | "suspect" | "evicted";

export interface Bar {
  row: Incarnation;
  startMs: number;
  /** Since when it has its state; until then it had another. */
  sinceMs: number;
  endMs: number;
  open: boolean;
  kind: BarKind;
}

const KINDS: Record<string, BarKind> = { active: "contributing", forming: "starting", spare: "starting", catching_up: "catching up", suspect: "suspect" };
const OVER = new Set(["evicted", "ended"]);

/** By slot, and in it by time. */
export function barsOf(rows: readonly Incarnation[], nowMs: number): Bar[] {
  return rows
    .map((row): Bar => {
      const since = Date.parse(row.state_since);
      const open = row.current && !OVER.has(row.state);
      return { row, startMs: Math.min(Date.parse(row.created_at), since), sinceMs: since, endMs: open ? Math.max(nowMs, since) : since, open, kind: row.state === "evicted" ? "evicted" : open ? (KINDS[row.state] ?? "before") : "before" };
    })
    .sort((a, b) => a.row.index - b.row.index || a.startMs - b.startMs);
}

export interface HistoryLayout {
  /** Slots in order; `perRow` of them share a row. */
  slots: number[];
  rowBySlot: ReadonlyMap<number, number>;
  perRow: number;
  rows: number;
  rowPx: number;
  height: number;
}

const ROW_PX = { least: 2, most: 14 };

/** Rows that fill a room of this height at most, however many slots there are. */
export function historyLayout(bars: readonly Bar[], roomPx: number): HistoryLayout {
  const slots = [...new Set(bars.map((bar) => bar.row.index))].sort((a, b) => a - b);
  const perRow = Math.max(1, Math.ceil((slots.length * ROW_PX.least) / roomPx));
  const rows = Math.ceil(slots.length / perRow);
  const rowPx = rows === 0 ? ROW_PX.most : Math.max(ROW_PX.least, Math.min(ROW_PX.most, Math.floor(roomPx / rows)));
  return { slots, rowBySlot: new Map(slots.map((slot, i) => [slot, Math.floor(i / perRow)])), perRow, rows, rowPx, height: rows * rowPx };
}

export const rowOf = (layout: HistoryLayout, slot: number): number => layout.rowBySlot.get(slot) ?? -1;

/** Which slot lies at this height; null beside all of them. */
export const slotAt = (layout: HistoryLayout, y: number): number | null => (y < 0 || y >= layout.height ? null : (layout.slots[Math.floor(y / layout.rowPx) * layout.perRow] ?? null));

export interface Piece {
  slot: number;
  fromMs: number;
  toMs: number;
  kind: BarKind;
}

/* Slots that share a row cover one another: the later of these kinds lies on top. */
const ORDER: BarKind[] = ["before", "contributing", "starting", "catching up", "suspect", "evicted"];

/** What is filled, what must be seen last. An eviction is its moment alone. */
export function piecesOf(bars: readonly Bar[]): Piece[] {
  const pieces: Piece[] = [];
  for (const bar of bars) {
    const slot = bar.row.index;
    if (bar.startMs < bar.sinceMs) pieces.push({ slot, fromMs: bar.startMs, toMs: bar.open ? bar.sinceMs : bar.endMs, kind: "before" });
    if (bar.open) pieces.push({ slot, fromMs: bar.sinceMs, toMs: bar.endMs, kind: bar.kind });
    else if (bar.kind === "evicted") pieces.push({ slot, fromMs: bar.endMs, toMs: bar.endMs, kind: "evicted" });
  }
  return pieces.sort((a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind));
}

/** What all of them are, in figures. `slots`: those that the newest attempt has; one whose place another slot has taken is none of
    them, and neither is one that only an earlier attempt had. `out`: of these, those whose incarnation is over. */
export function historySum(bars: readonly Bar[]): { slots: number; incarnations: number; evictions: number; out: number } {
  const attempt = bars.reduce((newest, bar) => Math.max(newest, bar.row.attempt), 0);
  const now = bars.filter((bar) => bar.row.current && bar.row.attempt === attempt);
  return { slots: now.length, incarnations: bars.length, evictions: bars.filter((bar) => bar.row.state === "evicted").length, out: now.filter((bar) => !bar.open).length };
}

/** As they stood at a moment: those that began later are left out, and a state that began later stands for none. `states`: by id,
    as the newest summaries until then say. */
export function incarnationsAt(rows: readonly Incarnation[], states: ReadonlyMap<string, Pick<Incarnation, "state" | "state_since" | "current">>, ms: number): Incarnation[] {
  const inTurn = [...rows].sort((a, b) => a.attempt - b.attempt || a.incarnation - b.incarnation);
  const born = inTurn.filter((row) => Date.parse(row.created_at) <= ms);
  const newest = newestOf(born);
  const last = newestOf(inTurn);
  return born.map((row) => {
    const was = Date.parse(row.state_since) <= ms ? row : (states.get(row.id) ?? { state: "" as const, state_since: new Date(ms).toISOString() });
    /* The newest one of its slot, evicted and not current: another slot has taken its place. */
    const replaced = was.state === "evicted" && (states.get(row.id)?.current === false || (!row.current && last.get(row.index) === row.id));
    return { ...row, state: was.state, state_since: was.state_since, current: newest.get(row.index) === row.id && !replaced };
  });
}

/** Of each slot the newest one; `inTurn`: by attempt and incarnation. */
const newestOf = (inTurn: readonly Incarnation[]): Map<number, string> => new Map(inTurn.map((row) => [row.index, row.id]));
