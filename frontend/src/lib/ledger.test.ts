import { describe, expect, it } from "vitest";
import type { Ledger, LedgerRow } from "../api/types";
import { barParts, csv, gpuHours, lost, money, rowPath } from "./ledger";

const row = (changes: Partial<LedgerRow> = {}): LedgerRow => ({
  id: "inc_1", kind: "incident", label: "Rank 3, hung", gpu_s: 3600, share: 1, money: null, classes: { stall: 3600 }, queued_gpu_s: null, ettr: null, ...changes,
});
const ledger = (changes: Partial<Ledger> = {}): Ledger => ({
  since: "2026-03-01T00:00:00Z", until: "2026-03-08T00:00:00Z", judged_until: null, known_since: null, by: "cause", known_gpu_s: 3600, restated_gpu_s: 0,
  queued_gpu_s: 0, ettr: null, failures: null, price: null, currency: null, classes: [], rows: [row()], left_out: 0, as_of_seq: 1, ...changes,
});

describe("the ledger", () => {
  it.each([[0, "0.0 GPU-s"], [144, "144 GPU-s"], [3600, "1.0 GPU-h"], [44_280, "12.3 GPU-h"], [4_442_400, "1,234 GPU-h"], [null, "not reported"]])("%s s read %s", (s, text) => {
    expect(gpuHours(s)).toBe(text);
  });

  it("draws each class once, and none below nothing", () => {
    const parts = barParts({ idle: 30, productive: 60, degraded: -5, down: 10 });
    expect(parts.map((part) => part.of)).toEqual(["productive", "idle", "down"]);
    expect(parts.reduce((sum, part) => sum + part.share, 0)).toBeCloseTo(1);
    expect(barParts({})).toEqual([]);
  });

  it("counts what a job held and made no progress with as lost", () => {
    expect(lost({ productive: 60, stall: 5, lost_work: 7, idle: 9, down: 3 })).toBe(12);
  });

  it("leads to what it names", () => {
    expect(rowPath(row(), "cause")).toBe("/incidents/inc_1");
    expect(rowPath(row({ kind: "person", id: "new fans (ada)" }), "cause")).toBeNull();
    expect(rowPath(row({ kind: "node", id: "node_1" }), "node")).toBe("/nodes/node_1");
    expect(rowPath(row({ kind: "node", id: "no power" }), "cause")).toBeNull();
  });

  it("is written as CSV with quotes, without formulas and with money where there is a price", () => {
    const lines = csv(ledger({ price: 2, currency: "EUR", rows: [row(), row({ kind: "person", id: "=1+1", label: 'a "b"' })] })).split("\r\n");
    expect(lines[1]).toBe('2026-03-01T00:00:00Z,2026-03-08T00:00:00Z,cause,incident,inc_1,"Rank 3, hung",stall,3600,1,2,EUR');
    expect(lines[2]).toContain(`'=1+1,"a ""b""",stall`);
    expect(csv(ledger()).split("\r\n")[1]).toMatch(/,3600,1,,$/);
  });

  it("names money only with a currency", () => {
    expect(money(12.5, "EUR")).toBe("12.50 EUR");
    expect(money(null, null)).toBe("not reported");
  });
});
