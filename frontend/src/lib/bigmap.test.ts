import { describe, expect, it } from "vitest";
import { type BigNode, type FleetColumns, isBad, layoutOf, matching, nodeAt, nodesOf, segmentsOf, SHOWS, squares, stepTo, summary, worstFirst } from "./bigmap";

const node = (name: string, changes: Partial<BigNode> = {}): BigNode => ({
  name, state: "ready", segment: "s1", connected: true, devices: 8, healthy: 8, atRisk: 0, lost: 0, busy: 8, spare: 0, risk: 0.1, ...changes,
});
const fleet = (count: number, segments: number): BigNode[] => Array.from({ length: count }, (_, i) => node(`n${i}`, { segment: `s${i % segments}` }));

describe("columns", () => {
  it("become nodes, a word for each place, none where there is none", () => {
    const columns: FleetColumns = {
      name: ["a", "b"], state: { words: ["ready", "cordoned"], at: [1, 0] }, segment: { words: ["x"], at: [null, 0] }, connected: [true, false],
      devices: [8, 4], devices_healthy: [7, 4], devices_at_risk: [1, 0], devices_lost: [1, 0], devices_busy: [5, 0], devices_spare: [0, 2], risk: [0.5, null],
    };
    expect(nodesOf(columns)).toEqual([
      { name: "a", state: "cordoned", segment: "", connected: true, devices: 8, healthy: 7, atRisk: 1, lost: 1, busy: 5, spare: 0, risk: 0.5 },
      { name: "b", state: "ready", segment: "x", connected: false, devices: 4, healthy: 4, atRisk: 0, lost: 0, busy: 0, spare: 2, risk: null },
    ]);
  });
});

describe("squares of a node", () => {
  it("are as many as its devices, whatever is shown", () => {
    const one = node("a", { healthy: 5, lost: 1, atRisk: 2, busy: 4, spare: 1, risk: 0.99 });
    for (const show of SHOWS) expect(squares(one, show).reduce((sum, [, number]) => sum + number, 0)).toBe(8);
    expect(squares(one, "health")).toEqual([["lost", 1], ["unhealthy", 2], ["at-risk", 2], ["healthy", 3]]);
    expect(squares(one, "use")).toEqual([["busy", 4], ["spare", 1], ["free", 3]]);
    expect(squares(one, "risk")).toEqual([["heat-7", 8]]);
    expect(squares(node("b", { risk: null }), "risk")).toEqual([["none", 8]]);
  });
});

describe("worst first", () => {
  it("is lost before unhealthy before no link before no work before risk", () => {
    const nodes = [
      node("calm"), node("warm", { risk: 0.9 }), node("cordoned", { state: "cordoned" }), node("cut", { connected: false }),
      node("sick", { healthy: 7 }), node("lost", { healthy: 7, lost: 1 }), node("calm too"),
    ];
    expect(worstFirst(nodes).map(({ name }) => name)).toEqual(["lost", "sick", "cut", "cordoned", "warm", "calm", "calm too"]);
    expect(nodes.filter(isBad).map(({ name }) => name)).toEqual(["cordoned", "cut", "sick", "lost"]);
  });
});

describe("a layout", () => {
  it("holds every node once, no block over another or beyond the width", () => {
    for (const [count, segments, width] of [[5, 1, 320], [1000, 7, 900], [12_500, 100, 1200]] as const) {
      const layout = layoutOf(fleet(count, segments), width, 620);
      expect(new Set(layout.nodes.map(({ name }) => name)).size).toBe(count);
      const taken = new Set<string>();
      for (let i = 0; i < count; i += 1) {
        expect(layout.x[i]! + layout.blockWidth).toBeLessThanOrEqual(width);
        taken.add(`${layout.x[i]} ${layout.y[i]}`);
      }
      expect(taken.size).toBe(count);
    }
  });

  it("is as large as fits, and smaller for more", () => {
    expect(layoutOf(fleet(300, 1), 1200, 620).pitch).toBeGreaterThan(layoutOf(fleet(12_500, 1), 1200, 620).pitch);
    expect(layoutOf(fleet(300, 1), 1200, 620).height).toBeLessThanOrEqual(620);
  });

  it("has segments by name, or the worst first", () => {
    const nodes = [...fleet(30, 3), node("sick", { segment: "s2", healthy: 7 }), node("cut", { segment: "s2", connected: false }), node("gone", { segment: "s1", lost: 1, healthy: 7 })];
    expect(layoutOf(nodes, 300, 620).groups.map(({ name, bad }) => [name, bad])).toEqual([["s0", 0], ["s1", 1], ["s2", 2]]);
    expect(layoutOf(nodes, 300, 620, true).groups.map(({ name }) => name)).toEqual(["s2", "s1", "s0"]);
  });

  it("gives back the node that is under each point of its block, and none between and beyond", () => {
    const layout = layoutOf(fleet(1000, 7), 900, 620);
    layout.nodes.forEach((_, i) => {
      expect(nodeAt(layout, layout.x[i]! + 1, layout.y[i]! + 1)).toBe(i);
      expect(nodeAt(layout, layout.x[i]! + layout.blockWidth - 1, layout.y[i]! + layout.blockHeight - 1)).toBe(i);
    });
    expect(nodeAt(layout, 1, layout.groups[1]!.y + 4)).toBe(-1);
    expect(nodeAt(layout, 1, layout.height + 50)).toBe(-1);
    expect(nodeAt(layout, 899, 1)).toBe(-1);
  });

  it("is walked by arrow keys, and every node is reached", () => {
    const layout = layoutOf(fleet(50, 3), 300, 620);
    expect(stepTo(layout, -1, "ArrowDown")).toBe(0);
    const down = stepTo(layout, 0, "ArrowDown");
    expect(layout.y[down]).toBeGreaterThan(layout.y[0]!);
    expect(layout.x[down]).toBe(layout.x[0]);
    expect(stepTo(layout, down, "ArrowUp")).toBe(0);
    let at = 0;
    for (let i = 1; i < 50; i += 1) at = stepTo(layout, at, "ArrowRight");
    expect(at).toBe(49);
    expect([stepTo(layout, 49, "ArrowRight"), stepTo(layout, 49, "ArrowDown"), stepTo(layout, 0, "ArrowUp"), stepTo(layout, 7, "End"), stepTo(layout, 7, "Home")]).toEqual([49, 49, 0, 49, 0]);
  });
});

describe("sums and segments", () => {
  it("are those of the nodes", () => {
    const nodes = [node("a"), node("b", { healthy: 5, lost: 2, connected: false }), node("c", { state: "draining", segment: "", atRisk: 3 })];
    expect(summary(nodes)).toEqual({ nodes: 3, devices: 24, lost: 2, unhealthy: 1, atRisk: 3, noLink: 1, noWork: 1 });
    expect(segmentsOf(nodes).map(({ name, nodes: its, bad }) => [name, its.length, bad])).toEqual([["no segment", 1, 1], ["s1", 2, 1]]);
    expect(segmentsOf(fleet(30, 12)).map(({ name }) => name).slice(0, 3)).toEqual(["s0", "s1", "s2"]);
    expect(matching(nodes, " B ").map(({ name }) => name)).toEqual(["b"]);
    expect(matching(nodes, "")).toHaveLength(3);
  });
});
