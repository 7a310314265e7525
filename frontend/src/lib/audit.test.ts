import { describe, expect, it } from "vitest";
import type { AuditState } from "../api/types";
import { chainOf, filterOf, instant } from "./audit";

const state: AuditState = { verified: true, whole: true, at: "2026-01-01T00:00:00Z", rows: 40, seq: 40, broken: 0, first_fault: "", newest_seq: 43, unsealed: 0 };

describe("the audit log", () => {
  it("is asked for what is filled in, and for nothing else", () => {
    const params = new URLSearchParams({ tab: "audit", actor: " user:ada ", action: "", since: "2026-01-01T00:00", until: "soon" });
    expect(filterOf(params)).toEqual({ actor: "user:ada", since: new Date("2026-01-01T00:00").toISOString() });
    expect(instant("")).toBe("");
  });
  it("says up to which row it was verified and how many have come since", () => {
    expect(chainOf(state)).toEqual({ tone: "ok", text: "Verified up to row 40 at", more: "; 3 rows were sealed since." });
    expect(chainOf({ ...state, newest_seq: 40 }).more).toBe("; no row was sealed since.");
  });
  it("is not whole once rows that were verified are gone", () => {
    expect(chainOf({ ...state, newest_seq: 32 })).toEqual({ tone: "bad", text: "Verified up to row 40 at", more: "; rows 33 to 40 are gone since." });
    expect(chainOf({ ...state, newest_seq: null }).tone).toBe("bad");
  });
  it("is never shown as whole where it was not verified or is not", () => {
    expect(chainOf({ ...state, verified: false, whole: null, seq: null }).tone).toBe("warn");
    const broken = chainOf({ ...state, whole: false, broken: 1, first_fault: "edited: seq 3 (id 3): x" });
    expect(broken).toEqual({ tone: "bad", text: "Not whole: 1 fault up to row 40, found at", more: ". The first: edited: seq 3 (id 3): x." });
  });
});
