import { describe, expect, it } from "vitest";
import { barsOf, historyLayout, historySum, type Incarnation, incarnationsAt, piecesOf, rowOf, slotAt } from "./history";

const NOW = Date.parse("2026-11-29T14:00:00Z");
const at = (second: number): string => new Date(NOW + second * 1000).toISOString();
const row = (index: number, given: Partial<Incarnation> = {}): Incarnation => ({
  id: `j/1/${index}/${given.incarnation ?? 1}`, attempt: 1, index, incarnation: 1, state: "active", state_since: at(-90), created_at: at(-100), current: true, ...given,
});
const ROOM_PX = 360;

describe("bars of incarnations", () => {
  it("end now while one is open, and with its last change where it is over", () => {
    const bars = barsOf([row(1), row(0, { state: "evicted", state_since: at(-40), current: false }), row(0, { incarnation: 2, created_at: at(-30), state_since: at(-20) })], NOW);
    expect(bars.map((bar) => [bar.row.index, bar.row.incarnation, bar.kind, bar.open, (bar.endMs - NOW) / 1000])).toEqual([
      [0, 1, "evicted", false, -40], [0, 2, "contributing", true, 0], [1, 1, "contributing", true, 0],
    ]);
    expect(historySum(bars)).toEqual({ slots: 2, incarnations: 3, evictions: 1, out: 0 });
  });
  it.each([["forming", "starting"], ["catching_up", "catching up"], ["suspect", "suspect"], ["active", "contributing"]] as const)("%s is %s", (state, kind) => {
    expect(barsOf([row(0, { state })], NOW)[0]!.kind).toBe(kind);
  });
  it("do not say which state an incarnation had before its present one", () => {
    expect(piecesOf(barsOf([row(0, { state: "suspect", state_since: at(-5) })], NOW)).map((piece) => [piece.kind, (piece.toMs - piece.fromMs) / 1000])).toEqual([["before", 95], ["suspect", 5]]);
  });
  it("count a slot without an open incarnation", () => {
    expect(historySum(barsOf([row(0, { state: "evicted", current: true }), row(1)], NOW)).out).toBe(1);
  });
  it("count no slot whose place another one has taken, nor one that only an earlier attempt had", () => {
    const swapped = [row(0, { state: "evicted", current: false }), row(1), row(2)];
    expect(historySum(barsOf(swapped, NOW))).toEqual({ slots: 2, incarnations: 3, evictions: 1, out: 0 });
    const smaller = [row(0, { state: "ended", current: false, id: "old" }), row(1, { state: "ended" }), row(0, { attempt: 2 })];
    expect(historySum(barsOf(smaller, NOW))).toEqual({ slots: 1, incarnations: 3, evictions: 0, out: 0 });
  });
  it("never run backwards, whatever two clocks say", () => {
    for (const bar of barsOf([row(0, { created_at: at(-10), state_since: at(-20) }), row(1, { state_since: at(30) })], NOW)) {
      expect(bar.startMs).toBeLessThanOrEqual(bar.sinceMs);
      expect(bar.sinceMs).toBeLessThanOrEqual(bar.endMs);
    }
  });
  it("are drawn so that an eviction is never covered by what shares its row", () => {
    const bars = barsOf([row(0, { state: "evicted", state_since: at(-40), current: false }), ...Array.from({ length: 999 }, (_, i) => row(i + 1))], NOW);
    expect(piecesOf(bars).at(-1)).toMatchObject({ slot: 0, kind: "evicted" });
  });
});

describe("rows", () => {
  it.each([1, 2, 25, 64, 180, 181, 2_048, 16_384])("of %i slots fill one room, and each slot is found again where it lies", (slots) => {
    const layout = historyLayout(barsOf(Array.from({ length: slots }, (_, i) => row(3 * i)), NOW), ROOM_PX);
    expect(layout.height).toBeLessThanOrEqual(ROOM_PX);
    expect(layout.rowPx).toBeGreaterThanOrEqual(2);
    expect(layout.rows * layout.perRow).toBeGreaterThanOrEqual(slots);
    for (const slot of [0, 3 * Math.floor(slots / 2), 3 * (slots - 1)]) {
      const y = rowOf(layout, slot) * layout.rowPx;
      expect(slotAt(layout, y)! / 3).toBe(Math.floor(slot / 3 / layout.perRow) * layout.perRow);
    }
    expect([slotAt(layout, -1), slotAt(layout, layout.height)]).toEqual([null, null]);
  });
  it("of no slot are none", () => {
    expect(historyLayout([], ROOM_PX)).toMatchObject({ rows: 0, height: 0 });
  });
});

describe("incarnations at a moment", () => {
  const rows = [row(0, { state: "evicted", state_since: at(-40), current: false }), row(0, { incarnation: 2, created_at: at(-30), state_since: at(-20) })];
  it("are those that had begun, each with the state that it had, and none of later", () => {
    const then = (second: number): unknown[] => incarnationsAt(rows, new Map(), NOW + second * 1000).map((one) => [one.incarnation, one.state, one.current]);
    expect(then(-101)).toEqual([]);
    expect(then(-50)).toEqual([[1, "", true]]);
    expect(then(-35)).toEqual([[1, "evicted", true]]);
    expect(then(-25)).toEqual([[1, "evicted", false], [2, "", true]]);
    expect(then(0)).toEqual([[1, "evicted", false], [2, "active", true]]);
  });
  it("are not current once another slot has taken their place, and were before", () => {
    const swapped = [row(0, { state: "evicted", state_since: at(-40), current: false }), row(1)];
    expect([-50, -30].map((second) => historySum(barsOf(incarnationsAt(swapped, new Map(), NOW + second * 1000), NOW + second * 1000)))).toEqual([
      { slots: 2, incarnations: 2, evictions: 0, out: 0 }, { slots: 1, incarnations: 2, evictions: 1, out: 0 },
    ]);
    const earlier = [...swapped, row(0, { attempt: 2, created_at: at(-10), id: "j/2/0/1" })];
    const known = new Map([["j/1/0/1", { state: "evicted", state_since: at(-40), current: false }]] as const);
    expect(incarnationsAt(earlier, known, NOW - 30_000).map((one) => one.current)).toEqual([false, true]);
  });
  it("have the state that was published until then, and are drawn without one where none is kept", () => {
    const known = new Map([["j/1/0/1", { state: "suspect", state_since: at(-60), current: true }]] as const);
    expect(barsOf(incarnationsAt(rows, known, NOW - 50_000), NOW - 50_000).map((bar) => bar.kind)).toEqual(["suspect"]);
    const bars = barsOf(incarnationsAt(rows, new Map(), NOW - 50_000), NOW - 50_000);
    expect(piecesOf(bars).map((piece) => [piece.kind, (piece.toMs - NOW) / 1000])).toEqual([["before", -50], ["before", -50]]);
    expect(historySum(bars)).toEqual({ slots: 1, incarnations: 1, evictions: 0, out: 0 });
  });
});
