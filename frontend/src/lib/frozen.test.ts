import { afterEach, describe, expect, it } from "vitest";
import type { EventItem, Replica, Step } from "../api/types";
import { frozenOf, instantOf, latest, replicasAt, stepsUntil } from "./frozen";
import { spansOf } from "./lifeline";
import { paths } from "./paths";

const NOW = Date.parse("2026-11-29T14:00:00Z");
const at = (second: number): string => new Date(NOW + second * 1000).toISOString();

describe("the moment in the address", () => {
  it.each(["2026-11-29T13:59:00Z", "2026-11-29T13:59Z", "2026-11-29T14:59:00+01:00", "2026-11-29T14:59:00 01:00", "2026-11-29T13:59:00.000000Z"])("is read: %s", (text) => {
    expect(frozenOf(text, NOW)).toMatchObject({ ms: NOW - 60_000, wrong: "" });
  });
  it.each(["yesterday", "2026-11-29", "2026-11-29T13:59:00", "2026-13-29T13:59:00Z", "1764424740", "2026-11-29T13:59:00Z<script>"])("is none, and no live page: %s", (text) => {
    const frozen = frozenOf(text, NOW);
    expect(frozen?.ms).toBeNull();
    expect(frozen?.wrong).toContain("no instant");
  });
  it("does not lie in the future, but for the difference of two clocks", () => {
    expect(frozenOf(at(4), NOW)?.ms).toBe(NOW + 4_000);
    expect(frozenOf(at(6), NOW)?.wrong).toContain("in the future");
    expect([frozenOf(null, NOW), frozenOf("", NOW)]).toEqual([null, null]);
    expect(instantOf(NOW + 250)).toBe("2026-11-29T14:00:00Z");
  });
});

describe("links of a frozen page", () => {
  afterEach(() => history.replaceState(null, "", "/"));
  it("lead to the same moment of jobs and nodes, and those of a live page to now", () => {
    expect([paths.job("j"), paths.job("j", "events"), paths.node("n")]).toEqual(["/jobs/j", "/jobs/j?tab=events", "/nodes/n"]);
    history.replaceState(null, "", "/jobs/j?at=2026-11-29T13:59:00Z");
    expect(paths.job("j", "events")).toBe("/jobs/j?tab=events&at=2026-11-29T13%3A59%3A00Z");
    expect([paths.node("n"), paths.incident("i")]).toEqual(["/nodes/n?at=2026-11-29T13%3A59%3A00Z", "/incidents/i"]);
  });
});

describe("what was", () => {
  const event = (seq: number, entity_id: string | null, patch: unknown): EventItem => ({ seq, entity_id, patch }) as unknown as EventItem;
  it("is the newest summary of each object, in whichever order events come", () => {
    expect(latest([event(9, "a", { n: 2 }), event(3, "a", { n: 1 }), event(5, "b", { n: 7 }), event(6, "b", null), event(7, null, { n: 0 })])).toEqual([{ n: 2 }, { n: 7 }]);
  });
  it("holds the steps that were committed by then, and no later one", () => {
    const steps = [1, 2, 3].map((step) => ({ step, at: at(step) })) as unknown as Step[];
    expect(stepsUntil(steps, NOW + 2_000).map((step) => step.step)).toEqual([1, 2]);
  });
});

describe("replicas at a moment", () => {
  const replica = (given: Partial<Replica>): Replica =>
    ({ id: `r${given.incarnation ?? 1}`, attempt: 1, index: 0, incarnation: 1, state: "active", state_since: at(10), created_at: at(0), current: true, ranks: [{ started_at: at(1), joined_at: at(10) }], ...given }) as unknown as Replica;
  it("are not those that began later", () => {
    expect(replicasAt([replica({ created_at: at(5) })], new Map(), NOW + 4_000)).toEqual([]);
  });
  it("do not have today's state where it began later", () => {
    const evicted = replica({ state: "evicted", state_since: at(60), current: false });
    const next = replica({ incarnation: 2, created_at: at(61), state: "active", state_since: at(70), ranks: [{ started_at: at(62), joined_at: at(70) }] as unknown as Replica["ranks"] });
    const [shown, ...others] = replicasAt([evicted, next], new Map(), NOW + 30_000);
    expect(others).toEqual([]);
    expect(shown).toMatchObject({ state: "", current: true });
    expect(replicasAt([evicted], new Map(), NOW + 5_000)[0]).toMatchObject({ state: "", state_since: new Date(NOW + 5_000).toISOString(), ranks: [{ started_at: at(1), joined_at: null }] });
    expect(replicasAt([evicted], new Map([["r1", { state: "suspect", state_since: at(20) }]]), NOW + 30_000)[0]).toMatchObject({ state: "suspect" });
    expect(replicasAt([evicted, next], new Map(), NOW + 65_000).map((row) => [row.state, row.current])).toEqual([["evicted", false], ["", true]]);
  });
  it("are drawn until then where no state of them is kept", () => {
    expect(spansOf(replicasAt([replica({ state: "evicted", state_since: at(60), current: false })], new Map(), NOW + 30_000), NOW + 30_000)).toMatchObject([{ state: "", open: true, endMs: NOW + 30_000 }]);
  });
});
