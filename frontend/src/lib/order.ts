/* Rows must not move under the cursor: while it is over a list, the order and the set of rows
   stay; contents of rows that remain are still fresh. Pure. */

export interface Held<T> {
  rows: T[];
  /** How many rows would appear, vanish or move if the order were let go. */
  waiting: number;
}

export function heldOrder<T extends { id: string }>(shown: readonly T[], fresh: readonly T[], hold: boolean): Held<T> {
  if (!hold || shown.length === 0) return { rows: [...fresh], waiting: 0 };
  const byId = new Map(fresh.map((row) => [row.id, row]));
  const shownIds = new Set(shown.map((row) => row.id));
  const kept = shown.map((row) => byId.get(row.id) ?? row);
  /* Rows further down (a next page) may be appended: they push nothing away. */
  const lastShown = fresh.findLastIndex((row) => shownIds.has(row.id));
  const appended = fresh.slice(lastShown + 1);
  const gone = shown.filter((row) => !byId.has(row.id)).length;
  const inserted = fresh.slice(0, lastShown + 1).filter((row) => !shownIds.has(row.id)).length;
  const survivors = fresh.filter((row) => shownIds.has(row.id));
  const before = shown.filter((row) => byId.has(row.id));
  const moved = survivors.filter((row, i) => before[i]?.id !== row.id).length;
  return { rows: [...kept, ...appended], waiting: gone + inserted + (gone + inserted === 0 ? moved : 0) };
}
