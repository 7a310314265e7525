import { describe, expect, it } from "vitest";
import type { Device, IncidentDetail, Replica, Step } from "../api/types";
import { alignSeries } from "./align";
import { bytes, count, duration, fixed, gpuSeconds, MISSING, percent, progress, quantity, scalar } from "./format";
import { cellOf, hashStep } from "./heat";
import { layoutParts, ranksPerReplica } from "./layout";
import { place, spansOf, ticks } from "./lifeline";
import { paths } from "./paths";
import { heldOrder } from "./order";
import { repeatedWords, verdictWords } from "./certificate";
import { incidentText, notDetected, phaseBars } from "./phases";
import { keptSteps, markersOf, stepAt } from "./series";
import { timeText } from "./time";

describe("missing values", () => {
  it("are never shown as zero", () => {
    for (const show of [count, duration, percent, bytes, gpuSeconds, scalar]) {
      expect(show(null)).toBe(MISSING);
      expect(show(undefined)).toBe(MISSING);
    }
    expect(fixed(Number.NaN, 2)).toBe(MISSING);
  });

  it("and a real zero is", () => {
    expect([count(0), duration(0), percent(0), scalar(0)]).toEqual(["0", "0 s", "0 %", "0"]);
  });
});

describe("progress", () => {
  it("is all of it only once it is, and is not cut where it is more", () => {
    expect([progress(0.9996), progress(1), progress(1.01), progress(null)]).toEqual(["99.9 %", "100.0 %", "101.0 %", MISSING]);
  });
});

describe("a layout", () => {
  const layout = { tp: 2, pp: 2, vp: 1, cp: 1, ep: 1, replica_dp: 2, dp: 3 };

  it("counts the data parallelism inside a replica as ranks", () => {
    expect(ranksPerReplica(layout)).toBe(8);
  });

  it("names what it has, and the three that every layout has", () => {
    expect(layoutParts(layout)).toEqual([["TP", 2], ["PP", 2], ["CP", 1], ["DP in a replica", 2]]);
    expect(layoutParts({ ...layout, replica_dp: 1, vp: 2, ep: 4 })).toEqual([["TP", 2], ["PP", 2], ["CP", 1], ["VP", 2], ["EP", 4]]);
  });
});

describe("durations", () => {
  it.each([[0.0042, "4 ms"], [0.31, "310 ms"], [4.25, "4.3 s"], [42.4, "42 s"], [75, "1 m 15 s"], [7265, "2 h 1 m"], [200_000, "2 d 7 h"]])("%f s reads %s", (s, text) => {
    expect(duration(s)).toBe(text);
  });
});

describe("quantities", () => {
  it("carry the unit of their name", () => {
    expect(quantity("silence_s", 0.42)).toEqual({ name: "silence", text: "420 ms" });
    expect(quantity("lost_gpu_s", 8)).toEqual({ name: "lost", text: "8.0 GPU-s" });
    expect(quantity("exit_signal", 9)).toEqual({ name: "exit signal", text: "9" });
    expect(quantity("silence_s", null).text).toBe(MISSING);
  });
});

describe("times", () => {
  const now = Date.parse("2026-03-02T10:00:00Z");
  it("obey the one switch", () => {
    expect(timeText("2026-03-02T09:58:30Z", "utc", now)).toBe("09:58:30Z");
    expect(timeText("2026-03-02T09:58:30Z", "relative", now)).toBe("1 m 30 s ago");
    expect(timeText("2026-03-01T09:58:30Z", "utc", now)).toBe("2026-03-01 09:58:30Z");
    expect(timeText(null, "utc", now)).toBe(MISSING);
  });
});

describe("heldOrder", () => {
  const rows = (...ids: string[]): { id: string }[] => ids.map((id) => ({ id }));
  const ids = (held: { rows: { id: string }[] }): string[] => held.rows.map((row) => row.id);

  it("follows the server while nobody points at the list", () => {
    expect(ids(heldOrder(rows("a", "b"), rows("c", "a", "b"), false))).toEqual(["c", "a", "b"]);
  });

  it("moves no row under the cursor, and says how much waits", () => {
    const held = heldOrder(rows("a", "b"), rows("c", "b", "a"), true);
    expect(ids(held)).toEqual(["a", "b"]);
    expect(held.waiting).toBe(1);
  });

  it("keeps a vanished row in its place", () => {
    const held = heldOrder(rows("a", "b"), rows("b"), true);
    expect(ids(held)).toEqual(["a", "b"]);
    expect(held.waiting).toBe(1);
  });

  it("lets a next page in at the end", () => {
    const held = heldOrder(rows("a", "b"), rows("a", "b", "c"), true);
    expect([ids(held), held.waiting]).toEqual([["a", "b", "c"], 0]);
  });
});

describe("certificates", () => {
  const check = { name: "a", detail: "", value: null, limit: null };
  const none = { judged: null, of: null, repeated: null, step: 1, generated_at: null };
  it("says how much of an incomplete one was judged, and never that it holds", () => {
    const checks = [{ ...check, ok: true }, { ...check, ok: null }];
    expect(verdictWords({ ...none, state: "incomplete", judged: 4, of: 5, checks }, "exact")).toBe("incomplete: 4 of 5 judged");
    expect(verdictWords({ ...none, state: "incomplete", checks })).toBe("incomplete: 1 of 2 judged");
    expect(verdictWords({ ...none, state: "green", checks }, "exact")).toBe("exact");
  });
  it("tells what a restart trained again", () => {
    const repeated = { steps: 3, first: 5, last: 7, again: 2, compared: 2, largest_difference: 3e-7 };
    expect(repeatedWords(repeated)).toBe("Steps 5 to 7 were trained again, 2 of 3 so far; 2 losses differ by at most 3.0e-7.");
    expect(repeatedWords({ ...repeated, compared: 0, largest_difference: null })).toContain("no loss could be compared");
  });
});

describe("phases", () => {
  it("never says that a request, or what is over, is yet to be detected", () => {
    const ordered = [{ name: "ordered", at: "", since_fault_s: 0 }];
    expect(notDetected({ phases: ordered, state: "resolved" })).toBe("it was requested");
    expect(notDetected({ phases: [], state: "resolved" })).not.toBe("not yet");
    expect(notDetected({ phases: [], state: "open" })).toBe("not yet");
  });

  const phases = [{ name: "decide", at: "", since_fault_s: 0.5 }, { name: "detect", at: "", since_fault_s: 0.4 }, { name: "odd", at: "", since_fault_s: null }];
  it("last from the one before to their own moment", () => {
    expect(phaseBars(phases).map((bar) => [bar.name, Number(bar.durationS.toFixed(3))])).toEqual([["detect", 0.4], ["decide", 0.1]]);
  });

  it("are in the text for the post-mortem", () => {
    const incident: IncidentDetail = { etag: "", id: "inc_1", job_id: null, job_name: null, node_id: null, node_name: null, title: "Rank lost", state: "open", opened_at: "t", recovered_at: null, resolved_at: null, recovery_s: null, outcome: "", resolution: "", needs_hardware: false, acknowledged_at: null, acknowledged_by: "", acknowledgement: "", phases, stall_others_s: null, stall_s: null, certificate: null, as_of_seq: 1, signals: [], decisions: [], stacks: [], events: [], findings: [], first_failure: null, stack_groups: null, shared: "", part_of: null, parts: [], capabilities: {} };
    expect(incidentText(incident)).toContain("detect: 0.40 s");
    expect(incidentText(incident)).toContain("Phases, seconds since the fault:");
    expect(incidentText({ ...incident, phases: [{ name: "ordered", at: "", since_fault_s: 0 }] })).toContain("Phases, seconds since the request:");
    expect(incidentText(incident)).toContain("Certificate: none");
  });
});

describe("steps for the charts", () => {
  const step = (n: number, attempt: number, epoch: number, at: string): Step => ({ attempt, step: n, epoch, at, loss: attempt, grad_norm: null, step_time_s: null, exchange_s: null, stall_s: 0, tokens: 0, contributors: 1, samples_exact: true, hashes_equal: null, steps: 1 });
  const steps = [step(1, 1, 1, "2026-01-01T00:00:01Z"), step(2, 1, 1, "2026-01-01T00:00:02Z"), step(2, 2, 2, "2026-01-01T00:00:05Z"), step(3, 2, 2, "2026-01-01T00:00:06Z")];

  it("keep the newest attempt's value of a repeated step", () => {
    expect(keptSteps(steps).map((s) => [s.step, s.attempt])).toEqual([[1, 1], [2, 2], [3, 2]]);
  });

  it("are marked where the epoch changed", () => {
    expect(markersOf(keptSteps(steps), [], []).map((marker) => [marker.kind, marker.x])).toEqual([["epoch", 3]]);
  });

  it("say which step a moment fell on, and nothing outside what is known", () => {
    const kept = keptSteps(steps);
    expect(stepAt(kept, Date.parse("2026-01-01T00:00:03Z"))).toBe(3);
    expect(stepAt(kept, Date.parse("2025-01-01T00:00:00Z"))).toBeNull();
    expect(stepAt(kept, Date.parse("2027-01-01T00:00:00Z"))).toBeNull();
  });
});

describe("the lifeline", () => {
  const replica = (over: Partial<Replica>): Replica => ({ id: "r", attempt: 1, index: 0, incarnation: 1, state: "active", created_at: "2026-01-01T00:00:10Z", state_since: "2026-01-01T00:00:10Z", contributing: true, committed_step: 0, caught_up: null, current: true, ranks: [], capabilities: {}, ...over });
  const now = Date.parse("2026-01-01T00:01:00Z");

  it("lets a living replica run to now and an evicted one end when it was evicted", () => {
    const [living, evicted] = spansOf([replica({}), replica({ id: "e", index: 1, state: "evicted", current: false })], now);
    expect([living!.endMs, living!.open]).toEqual([now, true]);
    expect([evicted!.endMs, evicted!.open]).toEqual([Date.parse("2026-01-01T00:00:10Z"), false]);
  });

  it("lets a replica end with its attempt, though it is the slot's newest", () => {
    const [ended] = spansOf([replica({ state: "ended" })], now);
    expect([ended!.endMs, ended!.open]).toEqual([Date.parse("2026-01-01T00:00:10Z"), false]);
  });

  it("stays inside its frame and has few, round ticks", () => {
    const scale = { fromMs: 0, toMs: 1000, left: 10, width: 100 };
    expect([place(scale, -5), place(scale, 500), place(scale, 5000)]).toEqual([10, 60, 110]);
    expect(ticks(0, 60_000, 6)).toEqual([0, 10_000, 20_000, 30_000, 40_000, 50_000, 60_000]);
  });
});

describe("the device map", () => {
  const device: Device = { id: "d", node_id: "n", index: 0, uuid: "u", model: "m", memory_bytes: null, driver: "simulated", present: true, healthy: true, health_reason: "", risk: null, held_by: null, spare_for: null, live: null, capabilities: {} };
  it("has no colour for what is not reported", () => {
    expect(cellOf(device, { index: 0 }, "temperature")).toEqual({ step: null, text: MISSING });
    expect(cellOf(device, { index: 0, temperature_c: 95 }, "temperature").step).toBe(7);
    expect(cellOf(device, { index: 0, risk: 0 }, "risk").step).toBe(0);
  });

  it("gives a job the same colour each time", () => {
    expect(hashStep("job_1")).toBe(hashStep("job_1"));
  });
});

describe("alignSeries", () => {
  const device = (index: number, t: number[], temperature_c: (number | null)[]): never => ({ index, t, temperature_c }) as never;
  it("puts devices sampled at different moments on one axis, with gaps", () => {
    expect(alignSeries([device(0, [1, 3], [10, 30]), device(1, [2], [20])], "temperature_c")).toEqual({ x: [1, 2, 3], ys: [[10, undefined, 30], [undefined, 20, undefined]] });
  });
});

describe("the address of a node by its name", () => {
  it("is its page, or where it is found if no path can hold the name", () => {
    expect([paths.nodeNamed("gpu-07.rack_1"), paths.nodeNamed("a:b"), paths.nodeNamed("n".repeat(65))]).toEqual(["/nodes/gpu-07.rack_1", "/nodes?q=a%3Ab", `/nodes?q=${"n".repeat(65)}`]);
  });
});
