import { describe, expect, it } from "vitest";
import { classOf, counted, type MeshColumns, meshLayout, rankAt, rankOf, stageMedians } from "./mesh";

/** `replicas` of pp x tp ranks, all of which train. */
function job(replicas: number, pp: number, tp: number): MeshColumns {
  const each = pp * tp;
  const all = Array.from({ length: replicas * each }, (_, i) => i);
  return {
    replica: all.map((i) => Math.floor(i / each)), incarnation: all.map(() => 0), rank: all.map((i) => i % each),
    pp: all.map((i) => Math.floor((i % each) / tp)), tp: all.map((i) => i % tp),
    state: { words: ["training", "exited", "hung", "checkpointing"], at: all.map(() => 0) }, phase: { words: ["compute", "exchange"], at: all.map(() => 0) },
    step: all.map(() => 7), step_s: all.map((i) => (Math.floor((i % each) / tp) === 0 ? 1 : 2)), heartbeat_age_s: all.map(() => 0.5),
    node_name: { words: ["n0", "n1"], at: all.map((i) => i % 2) }, device_index: all.map((i) => i % 8),
  };
}

describe("a layout", () => {
  it("holds each rank once, a row a stage, no square over another", () => {
    for (const [replicas, pp, tp, width] of [[3, 2, 4, 320], [256, 4, 8, 1200], [128, 8, 16, 900]] as const) {
      const columns = job(replicas, pp, tp);
      const layout = meshLayout(columns, width, 620);
      const taken = new Set(Array.from(layout.x, (x, i) => `${x} ${layout.y[i]}`));
      expect(taken.size).toBe(replicas * pp * tp);
      expect(new Set(Array.from(layout.y).slice(0, pp * tp)).size).toBe(pp);
      for (let i = 0; i < columns.rank.length; i += 97) expect(rankAt(layout, layout.x[i]! + 1, layout.y[i]! + 1)).toBe(i);
    }
  });

  it("finds nobody beside the squares", () => {
    const layout = meshLayout(job(3, 2, 4), 320, 620);
    expect(rankAt(layout, 1, 1)).toBe(-1);
    expect(rankAt(layout, 1, layout.height + 40)).toBe(-1);
  });
});

describe("classes", () => {
  const columns = job(2, 2, 2);
  const medians = stageMedians(columns);

  it("are of its state, and what has ended is ended whatever is shown", () => {
    const other = { ...columns, state: { ...columns.state, at: [1, 2, 3, 0, 0, 0, 0, 0] }, phase: { ...columns.phase, at: [0, 0, 0, 1, null, 0, 0, 0] } };
    expect([0, 1, 2, 3, 4, 5].map((i) => classOf(other, i, "state", medians))).toEqual(["ended", "hung", "saving", "waiting", "none", "training"]);
    expect([classOf(other, 0, "step time", medians), classOf(other, 0, "heartbeat", medians)]).toEqual(["ended", "ended"]);
    expect([counted(other, "state").get("training"), counted(other, "state").get("none")]).toEqual([3, 1]);
  });

  it("of step times are against the median of its own stage", () => {
    expect([...medians]).toEqual([[0, 1], [1, 2]]);
    const slow = { ...columns, step_s: [1, 1.25, 2, 3.1, null, 1, 2, 2] };
    expect([0, 1, 2, 3, 4].map((i) => classOf(slow, i, "step time", medians))).toEqual(["heat-0", "heat-4", "heat-0", "heat-7", "none"]);
    expect(classOf(columns, 0, "step time", new Map())).toBe("none");
  });

  it("of heartbeats are those of the table", () => {
    const late = { ...columns, heartbeat_age_s: [0.1, 1.6, 2.5, null, 0, 0, 0, 0] };
    expect([0, 1, 2, 3].map((i) => classOf(late, i, "heartbeat", medians))).toEqual(["heard", "late", "silent", "none"]);
  });
});

describe("words", () => {
  it("name the coordinates that the layout has", () => {
    expect(rankOf(job(2, 2, 2), 7)).toEqual({ replica: 1, rank: 3, place: "pp 1, tp 1", state: "training", phase: "compute", step: 7, stepS: 2, heartbeatAgeS: 0.5, node: "n1", device: 7 });
  });
});
