import { afterEach, describe, expect, it, vi } from "vitest";
import { post } from "../api/client";
import { isSettled, whole } from "../api/queries";
import { setAsk } from "../api/signin";
import type { Job, Step } from "../api/types";
import { axisRange, feed, zoomOf } from "../ui/Chart";
import { shownOf } from "../ui/More";
import { alignSeries } from "./align";
import { isMissingChunk, retried } from "./chunks";
import { draftOf, keepDraft } from "./draft";
import { ettrOf, wallParts } from "./effective";
import { entryOf } from "./fresh";
import { nodeHeard, rankHeard, ranksOf, silentFor } from "./heard";
import { doneWith, jobNow, rankStep } from "./jobnow";
import { median } from "./median";
import { keptSteps } from "./series";

afterEach(() => {
  vi.unstubAllGlobals();
  setAsk(null);
});

const step = (n: number, over: Partial<Step> = {}): Step => ({ attempt: 1, step: n, epoch: 1, at: "2026-01-01T00:00:00Z", loss: 5 - n / 1000, grad_norm: null, step_time_s: 2, exchange_s: null, stall_s: 0, tokens: 1, contributors: 2, samples_exact: true, hashes_equal: true, steps: 1, ...over });
const job = (over: Partial<Job> = {}): Job => ({
  id: "job_1", name: "j", project: "p", owner: "o", state: "running", state_reason: "", state_since: "", priority: 0, epoch: 1, committed_step: 406, total_steps: 1000, progress: 0.406, step_time_s: 9, loss: 1.893,
  eta_s: 1, attempt: 1, restarts: 0, preemptions: 0, evictions: 0, replicas_active: 2, replicas_total: 2, replicas_asked: 2, last_checkpoint_step: 400, learned_step_s: 3, checkpoint_age_s: 12, last_checkpoint_local: false, stored_checkpoint_step: 400, work_at_risk_s: 54, work_at_risk_stored_s: 54, ettr: 1, ettr_basis: "observed", undisturbed_step_s: null, productivity: null, open_incident_id: null, created_at: "", finished_at: null, not_heard: [], capabilities: {}, wall: null, ...over,
});

describe("the effective time in words", () => {
  it("has a word where full strength was not seen, and says why there is no figure", () => {
    expect(ettrOf(job({ ettr: 0.667 }))).toMatchObject({ figure: "66.7 %", word: "" });
    expect(ettrOf(job({ ettr: 0.667, ettr_basis: "estimated" }))).toMatchObject({ figure: "66.7 %", word: "estimated" });
    expect(ettrOf(job({ ettr: null, ettr_basis: "too_few_steps" }))).toMatchObject({ figure: null, word: "too few steps" });
    expect(ettrOf(job({ ettr: null, ettr_basis: "not_counted" }))).toMatchObject({ figure: null, word: "not counted" });
  });
});

describe("where the wall time went", () => {
  it("has each part with its share, largest first, and leaves out what is nothing", () => {
    const wall = { wall_s: 200, productive_s: 150, degraded_s: -0.05, stalled_s: 10, recovery_s: 40, lost_s: 0, checkpoint_s: 0.05 };
    expect(wallParts(job({ wall })).map(({ what, share }) => `${what} ${share}`)).toEqual(["productive 75.0 %", "start and recovery 20.0 %", "stalled 5.0 %"]);
    expect(wallParts(job())).toEqual([]);
  });
});

describe("one step everywhere", () => {
  const pushed = Array.from({ length: 425 }, (_, i) => step(i));

  it("moves every figure of the header to the newest committed step", () => {
    const now = jobNow(job(), pushed, 3);
    expect([now.committed_step, now.progress, now.loss]).toEqual([425, 0.425, pushed[424]!.loss]);
    expect([now.step_time_s, now.eta_s, now.work_at_risk_s, now.checkpoint_age_s]).toEqual([2, 575 * 2, 25 * 3, 15]);
    expect(now.committed_step).toBe(doneWith(keptSteps(pushed).at(-1)!));
    expect(jobNow(job({ stored_checkpoint_step: 100 }), pushed, 3).work_at_risk_stored_s).toBe(325 * 3);
  });

  it("says no time left while the server says that nothing is committed, until it is", () => {
    expect(jobNow(job({ committed_step: 425, eta_s: null }), pushed, 3).eta_s).toBe(null);
    expect(jobNow(job({ committed_step: 424, eta_s: null }), pushed, 3).eta_s).toBe(575 * 2);
  });

  it("believes the newest attempt, also where it stands further back", () => {
    const now = jobNow(job(), [...pushed, step(400, { attempt: 2, loss: 4 })], 0);
    expect([now.attempt, now.committed_step, now.loss]).toEqual([2, 401, 4]);
  });

  it("shows the step of the charts also where a snapshot was read a moment later", () => {
    const now = jobNow(job({ committed_step: 426 }), pushed, 7);
    expect([now.committed_step, now.checkpoint_age_s]).toEqual([425, 19]);
  });

  it("keeps the snapshot of an attempt that has not committed a step yet, and lets its ages grow", () => {
    const now = jobNow(job({ attempt: 2, committed_step: 300 }), pushed, 7);
    expect([now.committed_step, now.loss, now.checkpoint_age_s]).toEqual([300, 1.893, 19]);
  });

  it("shows no rank of a contributing replica behind what it has taken part in, and leaves the others where they are", () => {
    expect([rankStep(423, 425), rankStep(426, 425), rankStep(7, 0)]).toEqual([425, 426, 7]);
  });

  it("leaves an ended job as it ended", () => {
    const ended = job({ state: "failed" });
    expect(jobNow(ended, pushed, 100)).toBe(ended);
  });

  it("does not draw what an older attempt did and lost", () => {
    const kept = keptSteps([...pushed, step(300, { attempt: 2 }), step(301, { attempt: 2 })]);
    expect([kept.length, kept.at(-1)!.step, kept.at(-1)!.attempt]).toEqual([302, 301, 2]);
  });

  it("has a median of even and odd numbers, and none of nothing", () => {
    expect([median([3, 1, 2]), median([4, 1, 2, 3]), median([])]).toEqual([2, 2.5, null]);
  });
});

describe("silence", () => {
  it("is the rank's own only while this page hears the server", () => {
    expect(rankHeard(25, 0.5, true)).toEqual({ ageS: 25, hearing: "bad" });
    expect(rankHeard(0.3, 18, false)).toEqual({ ageS: 18.3, hearing: "stale" });
    expect(rankHeard(0.3, 18, true).hearing).toBe("stale");
    expect(rankHeard(25, 0.5, false).hearing).toBe("stale");
    expect(rankHeard(1.7, 0, true).hearing).toBe("warn");
    /* A start imports for half a minute without a heartbeat: nothing is wrong, so nothing is red. */
    expect(rankHeard(12, 0.5, true, true)).toEqual({ ageS: 12, hearing: "ok" });
    expect(rankHeard(12, 0.5, false, true).hearing).toBe("stale");
    expect(rankHeard(0.4, 0, true).hearing).toBe("ok");
  });

  it("of a node is shown from 5 s on, and grows", () => {
    expect(nodeHeard(21, 1, true)).toEqual({ ageS: 22, hearing: "bad" });
    expect(nodeHeard(21, 9, false)).toEqual({ ageS: 21, hearing: "stale" });
    expect(nodeHeard(0.4, 0, true).hearing).toBe("ok");
    expect(nodeHeard(null, 0, true)).toEqual({ ageS: null, hearing: "stale" });
  });
});

describe("a zoomed chart", () => {
  const plot = () => ({ setData: vi.fn(), setScale: vi.fn() });

  it("keeps its range when points arrive", () => {
    const zoomed = plot();
    feed(zoomed, [[1, 2, 3]] as never, [1.2, 1.8]);
    expect(zoomed.setData).toHaveBeenCalledWith([[1, 2, 3]], false);
    expect(zoomed.setScale).toHaveBeenCalledWith("x", { min: 1.2, max: 1.8 });
  });

  it("shows all there is without a zoom", () => {
    const whole = plot();
    feed(whole, [[1, 2, 3]] as never, null);
    expect(whole.setData).toHaveBeenCalledWith([[1, 2, 3]], true);
    expect(whole.setScale).not.toHaveBeenCalled();
  });

  it("knows a zoom from the whole axis", () => {
    expect(zoomOf(1, 3, [1, 2, 3])).toBeNull();
    expect(zoomOf(0.5, 3.5, [1, 2, 3])).toBeNull();
    expect(zoomOf(1.5, 3, [1, 2, 3])).toEqual([1.5, 3]);
    expect(zoomOf(null, null, [])).toBeNull();
  });
});

describe("readings", () => {
  const device = (index: number, t: number[], temperature_c: (number | null)[]): never => ({ index, t, temperature_c }) as never;
  it("have a gap where nothing was read, and none where another device was", () => {
    const { x, ys } = alignSeries([device(0, [0, 1, 2, 3, 60, 61], [1, 1, 1, 1, 9, 9]), device(1, [0, 1, 2, 3, 30, 60], [2, 2, 2, 2, 2, 2])], "temperature_c");
    const hole = (3 + 60) / 2;
    expect(ys[0]![x.indexOf(hole)]).toBeNull();
    expect(ys[0]![x.indexOf(30)]).toBeUndefined();
    expect(ys[1]![x.indexOf(30)]).toBe(2);
  });

  it("of equal length and start but other moments are not drawn at each other's times", () => {
    const { x, ys } = alignSeries([device(0, [0, 1, 2], [1, 2, 3]), device(1, [0, 1.5, 2], [7, 8, 9])], "temperature_c");
    expect([x, ys[1]]).toEqual([[0, 1, 1.5, 2], [7, undefined, 8, 9]]);
  });
});

describe("a part of the page", () => {
  it("is asked for again while the server is away", async () => {
    let tries = 0;
    const load = (): Promise<string> => ((tries += 1) < 3 ? Promise.reject(new TypeError("Failed to fetch dynamically imported module: x")) : Promise.resolve("page"));
    expect(await retried(load, [0, 0, 0])).toBe("page");
    expect(tries).toBe(3);
  });

  it("that stays away fails with what the browser said", async () => {
    const failure = new TypeError("Failed to fetch dynamically imported module: x");
    const caught = await retried(() => Promise.reject(failure), [0]).catch((error: unknown) => error);
    expect(caught).toBe(failure);
    expect([isMissingChunk(failure), isMissingChunk(new Error("a bug"))]).toEqual([true, false]);
  });

  it("is of the bundle that the document names", () => {
    expect(entryOf('<link rel="modulepreload" href="/a.js">\n<script type="module" src="/static/ui/assets/index-abc.js"></script>')).toBe("/static/ui/assets/index-abc.js");
    expect(entryOf("<html></html>")).toBeNull();
  });
});

describe("lists", () => {
  it("say how much of them is shown", () => {
    expect(shownOf(50, 125, true, "node", "nodes")).toBe("50 of 125 nodes");
    expect(shownOf(1, 1, false, "node", "nodes")).toBe("1 node");
    expect(shownOf(200, null, true, "job", "jobs")).toBe("200 or more jobs");
  });

  it("are all pages together, counted with the first one alone", () => {
    const data = { pages: [{ items: [1, 2], next: "c", as_of_seq: 7, total: 4 }, { items: [3], next: null, as_of_seq: 9, total: null }], pageParams: [] };
    expect(whole(data)).toEqual({ rows: [1, 2, 3], total: 4, asOfSeq: 7 });
  });
});

describe("an ended job", () => {
  const ended = { state: "succeeded", finished_at: "2026-01-01T00:00:00Z" };
  const at = (s: number): number => Date.parse(ended.finished_at) + s * 1000;
  it("is asked about for two minutes more and then no longer", () => {
    expect([isSettled(ended, at(119)), isSettled(ended, at(121))]).toEqual([false, true]);
    expect(isSettled({ state: "running", finished_at: null }, at(9e6))).toBe(false);
  });
});

describe("a draft", () => {
  it("outlives the page and is forgotten once sent", () => {
    keepDraft("spec", "metadata: {}");
    expect(draftOf("spec")).toBe("metadata: {}");
    keepDraft("spec", null);
    expect(draftOf("spec")).toBeNull();
  });
});

describe("an order whose session has ended", () => {
  const refusal = (): Response => new Response(JSON.stringify({ title: "Not signed in", detail: "Sign in" }), { status: 401 });

  it("is sent again, with the same key, after signing in", async () => {
    const fetched = vi.fn().mockResolvedValueOnce(refusal()).mockResolvedValueOnce(new Response('{"detail":"done"}'));
    vi.stubGlobal("fetch", fetched);
    const ask = vi.fn(() => Promise.resolve(true));
    setAsk(ask);
    expect(await post("/jobs/{job_id}:cancel", { job_id: "1" }, { reason: "x" })).toEqual({ detail: "done" });
    const keys = fetched.mock.calls.map(([, init]) => (init as RequestInit & { headers: Record<string, string> }).headers["idempotency-key"]);
    expect([ask.mock.calls.length, keys[0] === keys[1]]).toEqual([1, true]);
  });

  it("fails as the server said when nobody signs in, and signing in itself never asks", async () => {
    const fetched = vi.fn(() => Promise.resolve(refusal()));
    vi.stubGlobal("fetch", fetched);
    const ask = vi.fn(() => Promise.resolve(false));
    setAsk(ask);
    await expect(post("/jobs/{job_id}:cancel", { job_id: "1" })).rejects.toMatchObject({ status: 401 });
    await expect(post("/login", {})).rejects.toMatchObject({ status: 401 });
    expect([ask.mock.calls.length, fetched.mock.calls.length]).toEqual([1, 2]);
  });
});

describe("axes", () => {
  it("begin at zero where nothing is counted and nothing is read", () => {
    expect(axisRange(0, 0, undefined, 4)).toEqual([0, 4]);
    expect(axisRange(1, 2, undefined, 4)[0]).toBe(0);
    expect(axisRange(null, null, undefined, 4)).toEqual([0, 4]);
    expect(axisRange(0, 0)[0]).toBe(0);
    expect(axisRange(0, 0, [0, null])).toEqual([0, 1]);
  });

  it("never go below zero for values that do not, and do for those that do", () => {
    for (const [min, max] of [[0, 3], [0.001, 900], [33, 34], [5, 5], [1e9, 1e9 + 1]] as const) {
      for (const span of [0, 4, 20]) expect(axisRange(min, max, undefined, span)[0]).toBeGreaterThanOrEqual(0);
    }
    expect(axisRange(-3, 2)[0]).toBeLessThanOrEqual(-3);
    expect(axisRange(-5, 20, undefined, 20)[0]).toBeLessThanOrEqual(-5);
  });

  it("hold every value, keep fixed ends, and let noise look like noise", () => {
    expect(axisRange(33, 34, undefined, 20)).toEqual([23, 44]);
    expect(axisRange(0.2, 0.9, [0, 1])).toEqual([0, 1]);
    const [low, high] = axisRange(2, 1_000_000, undefined, 4);
    expect(low <= 2 && high >= 1_000_000).toBe(true);
  });
});

describe("what a node's silence means to its ranks", () => {
  const silent = (commits: boolean, left_out: boolean) => ({ commits, left_out });
  it("tells ranks that commit from ranks that do not, and from those left out", () => {
    expect([silent(true, false), silent(false, false), silent(false, true)].map(ranksOf)).toEqual(["still commits", "no step since", "left out for now"]);
  });
  it("grows with the page's clock, in whole seconds, and says it where the clocks disagree", () => {
    const since = "2026-01-01T00:00:00.000000Z";
    const at = (s: number): number => Date.parse(since) + s * 1000;
    expect([at(21.9), at(0.2), at(-1), at(-30)].map((now) => silentFor({ since }, now))).toEqual([21, 0, 0, -30]);
  });
});
