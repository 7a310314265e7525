import { describe, expect, it } from "vitest";
import type { EventItem, Step } from "../api/types";
import { EMPTY, giveUpWaiting, HELD_LIMIT, type LiveData, mergeEntity, mergeSteps, patchKey, reduce, type ServerMessage } from "./reducer";

const event = (seq: number, patch: Record<string, unknown> | null = null, id = "job_1"): EventItem => ({
  seq, at: "2026-01-01T00:00:00Z", kind: "job.changed", sentence: "", job_id: id, node_id: null, entity: patch ? "job" : "", entity_id: id, job_seq: null, data: null, patch,
});
const run = (messages: ServerMessage[], from: LiveData = EMPTY): LiveData => messages.reduce((data, message) => reduce(data, message, 1_000), from);
const events = (...seqs: number[]): ServerMessage[] => seqs.map((seq) => ({ type: "event", event: event(seq, { epoch: seq }) }));
const hello = (seq: number): ServerMessage => ({ type: "hello", seq });
const step = (n: number, attempt = 1, loss = 1): Step => ({
  attempt, step: n, epoch: 1, at: "", loss, grad_norm: null, step_time_s: null, exchange_s: null, stall_s: 0, tokens: 0, contributors: 1, samples_exact: true, hashes_equal: null, steps: 1,
});

describe("durable events", () => {
  it("are applied in order and move the sequence number", () => {
    const data = run([hello(10), ...events(11, 12)]);
    expect(data.seq).toBe(12);
    expect(data.patches.get(patchKey("job", "job_1"))).toEqual({ seq: 12, patch: { epoch: 12 } });
  });

  it("that arrive early wait until the hole is closed", () => {
    const early = run([hello(10), ...events(12, 13)]);
    expect(early.seq).toBe(10);
    expect(early.patches.size).toBe(0);
    const closed = run(events(11), early);
    expect(closed.seq).toBe(13);
    expect(closed.held).toEqual([]);
    expect(closed.refetch).toBe(0);
  });

  it("end in the same state whatever the order of arrival", () => {
    const inOrder = run([hello(10), ...events(11, 12, 13, 14)]);
    const shuffled = run([hello(10), ...events(13, 11, 14, 12)]);
    expect(shuffled).toEqual(inOrder);
  });

  it("are taken once however often they are delivered", () => {
    const once = run([hello(10), ...events(11, 12)]);
    expect(run(events(11, 12, 12, 11), once)).toEqual(once);
  });

  it("behind a hole that never closes are taken, and everything is read again", () => {
    const data = giveUpWaiting(run([hello(10), ...events(12, 13)]));
    expect(data.seq).toBe(13);
    expect(data.refetch).toBe(1);
    expect(data.held).toEqual([]);
  });

  it("do not pile up behind a hole without limit", () => {
    const many = Array.from({ length: HELD_LIMIT + 1 }, (_, i) => 12 + i);
    const data = run([hello(10), ...events(...many)]);
    expect(data.held.length).toBeLessThanOrEqual(HELD_LIMIT);
    expect(data.refetch).toBe(1);
  });

  it("nothing is given up while nothing is missing", () => {
    const data = run([hello(10), ...events(11)]);
    expect(giveUpWaiting(data)).toBe(data);
  });
});

describe("resync", () => {
  it("jumps to the server's number and asks for fresh snapshots", () => {
    const data = run([hello(10), ...events(12), { type: "resync", seq: 90 }]);
    expect([data.seq, data.refetch, data.held.length]).toEqual([90, 1, 0]);
  });

  it("happens when the server's log is behind ours: it is another log", () => {
    const data = run([hello(10), ...events(11), hello(3)]);
    expect([data.seq, data.refetch, data.patches.size]).toEqual([3, 1, 0]);
  });

  it("does not happen when a reconnect finds the server ahead: it replays", () => {
    const data = run([hello(10), ...events(11), hello(20), ...events(12)]);
    expect([data.seq, data.refetch]).toEqual([12, 0]);
  });
});

describe("volatile messages", () => {
  it("replace their predecessor and leave the sequence number alone", () => {
    const rank = { replica: 0, incarnation: 1, rank: 0, section: "step", phase: "compute", step: 5, phase_age_s: 0, silent_s: 0, phase_since_s: 0, at: "a" };
    const data = run([
      hello(10),
      { type: "ranks", job_id: "job_1", at: "a", ranks: [rank, { ...rank, rank: 1 }] },
      { type: "ranks", job_id: "job_1", at: "b", ranks: [{ ...rank, step: 6 }] },
    ]);
    expect([...data.ranks.get("job_1")!.byRank.keys()]).toEqual(["0/1/0"]);
    expect(data.ranks.get("job_1")!.byRank.get("0/1/0")!.step).toBe(6);
    expect(data.seq).toBe(10);
  });

  it("of a kind this page does not know are ignored", () => {
    const data = run([hello(10)]);
    expect(run([{ type: "later" } as unknown as ServerMessage], data)).toBe(data);
  });
});

describe("mergeSteps", () => {
  it("appends new points and replaces repeated ones", () => {
    expect(mergeSteps([step(1), step(2)], [step(3)]).map((s) => s.step)).toEqual([1, 2, 3]);
    expect(mergeSteps([step(1), step(2)], [step(2, 1, 9)]).map((s) => s.loss)).toEqual([1, 9]);
  });

  it("orders points that arrive late, by attempt and then step", () => {
    const merged = mergeSteps([step(5), step(2, 2)], [step(4), step(1, 2)]);
    expect(merged.map((s) => [s.attempt, s.step])).toEqual([[1, 4], [1, 5], [2, 1], [2, 2]]);
  });
});

describe("mergeEntity", () => {
  const row = { id: "job_1", epoch: 1, live: "kept" };

  it("shows the patch where it is newer than the snapshot", () => {
    expect(mergeEntity(row, 10, { seq: 11, patch: { epoch: 2 } })).toEqual({ id: "job_1", epoch: 2, live: "kept" });
  });

  it("shows the snapshot where it already holds the patch", () => {
    expect(mergeEntity(row, 11, { seq: 11, patch: { epoch: 2 } })).toBe(row);
  });
});
