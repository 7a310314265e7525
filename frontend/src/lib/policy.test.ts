import { describe, expect, it } from "vitest";
import type { PolicyReplay } from "../api/types";
import { chosen, documentsText, draftFrom, listed, merged, paramsOf, policyOf, textFrom, withField, withRow, xidRows } from "./policy";

describe("whose policy", () => {
  it("goes from the address to the chooser and back", () => {
    for (const address of ["", "project=vision", "job=job_1"]) {
      const of = policyOf(new URLSearchParams(address));
      expect(new URLSearchParams(paramsOf(chosen(of))).toString()).toBe(address);
    }
    expect(policyOf(new URLSearchParams("job=job_1&project=vision"))).toEqual({ job_id: "job_1", project: "" });
  });
  it("names the documents behind a decision, where that is known", () => {
    expect(documentsText({ fleet: 3, project: 0, job: 2 })).toBe("fleet 3, project 0, job 2");
    expect(documentsText(null)).toBe("");
  });
});

describe("a policy document as a form", () => {
  const text = "lease_s: 20\nmax_acts: 9\nrule_modes:\n  straggler: observe\n";
  it("reads the simple form and writes it back", () => {
    const draft = draftFrom(text);
    expect(draft).toEqual({ lease_s: "20", max_acts: "9", rule_modes: { straggler: "observe" } });
    expect(textFrom(draft!)).toBe(text);
    expect(draftFrom("{}  # every field has its default\n")).toEqual({});
    expect(textFrom({})).toBe("{}\n");
  });
  it("leaves what it cannot show to the text", () => {
    for (const other of ["{max_acts: 9}", "max_acts: [1]", "- 1", "max_acts: 1\nmax_acts: 2", "  a: 1", "rule_modes: {straggler: observe}"]) expect(draftFrom(other)).toBeNull();
  });
  it("sets and takes away fields and rows", () => {
    expect(withField({ a: "1" }, "b", "2")).toEqual({ a: "1", b: "2" });
    expect(withField({ a: "1", b: "2" }, "b", " ")).toEqual({ a: "1" });
    expect(withRow({}, "rule_modes", "restart", "recommend")).toEqual({ rule_modes: { restart: "recommend" } });
    expect(withRow({ rule_modes: { restart: "recommend" } }, "rule_modes", "restart", "")).toEqual({});
  });
});

const made = (choice: string, mode: string, cost: number | null): PolicyReplay["differences"][number]["before"] => ({ rule: "replica_failure", choice, mode, sentence: "", cost_gpu_s: cost });
const page = (...differences: PolicyReplay["differences"]): PolicyReplay => ({ replayed: 10, equal: 10 - differences.length, differences, left_out: { old: 1 }, changes: [], policies: {}, next: null });
const row = { decision_id: "d", job_id: "j", job_name: "a", at: "2026-01-01T00:00:00Z", fields: [], assumed: false, case: null, no_case: "", incident_id: null, own: "", other: "" };

describe("a dry run", () => {
  it("counts what would be carried out and what would not, with its price", () => {
    const held = { ...row, kind: "held", key: "1", before: made("evict", "enforce", 30), after: made("evict", "observe", 30) };
    const instead = { ...row, kind: "instead", key: "2", before: made("evict", "enforce", 30), after: made("restart", "enforce", 50) };
    const whole = merged([page(held), page(instead)]);
    expect([whole.replayed, whole.equal, whole.leftOut]).toEqual([20, 18, { old: 2 }]);
    expect([whole.fewer, whole.more]).toEqual([{ evict: 2 }, { restart: 1 }]);
    expect([whole.costGpuS, whole.priced]).toEqual([-30 + 20, 2]);
    expect(listed({ evict_and_replace: 3, restart: 1 })).toBe("evict and replace 3, restart 1");
  });
  it("counts once what each later pass would decide again", () => {
    const added = { ...row, kind: "added", key: "3", before: null, after: made("evict", "enforce", null) };
    const whole = merged([page(added), page({ ...added, decision_id: "e" })]);
    expect([whole.differences.length, whole.more, whole.priced]).toEqual([1, { evict: 1 }, 0]);
  });
});

describe("the XIDs whose action a draft sets", () => {
  it("come by their numbers with what they are, also one that no catalogue has", () => {
    const draft = draftFrom("xid_overrides:\n  79: reset\n  9: ignore\n")!;
    expect(xidRows(draft, [[79, "it has fallen off the bus", "fatal"]])).toEqual([
      { xid: "9", what: "not in the catalogue", standard: "", action: "ignore" },
      { xid: "79", what: "it has fallen off the bus", standard: "fatal", action: "reset" },
    ]);
    expect(xidRows({}, [])).toEqual([]);
  });
});
