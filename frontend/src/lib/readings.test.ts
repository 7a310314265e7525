import { describe, expect, it } from "vitest";
import type { Signal } from "../api/types";
import type { Readings } from "./heat";
import { bytes, MISSING, percent } from "./format";
import { errorsText, heldBack, partsText, remapText, signalText, valueText } from "./readings";

const device = (fields: Readings): Readings => ({ index: 0, ...fields });
const signal = (fields: Partial<Signal>): Signal => ({ kind: "xid", value: 79, evidence: {}, ...fields }) as Signal;

describe("a device's readings in words", () => {
  it("tells corrected and uncorrectable errors apart and never adds them", () => {
    expect(errorsText(device({ ecc_corrected_total: 40, ecc_uncorrected_total: 2 }))).toBe("2 uncorrectable, 40 corrected");
    expect(errorsText(device({ ecc_corrected_total: 0, ecc_uncorrected_total: null }))).toBe(`${MISSING} uncorrectable, 0 corrected`);
    expect(errorsText(device({}))).toBe(MISSING);
  });

  it("has no code for an end that nobody saw, and no 0 for a finding that has no value", () => {
    expect(valueText(signal({ kind: "rank_exit", value: null, evidence: { told: false, exit_code: null, signal: null } }))).toBe("not seen");
    expect(valueText(signal({ kind: "rank_exit", value: -1, evidence: { told: true, exit_code: null, signal: 1 } }))).toBe("-1");
    expect(valueText(signal({ kind: "rank_exit", value: 0, evidence: { told: true, exit_code: 0, signal: null } }))).toBe("0");
    expect(valueText(signal({ kind: "node_check", value: null }))).toBe("-");
  });

  it("says which rows wait, which have failed, and what is not reported", () => {
    expect(remapText(device({ row_remap_pending: true, row_remap_failure: false }))).toBe("rows wait for a reset");
    expect(remapText(device({ row_remap_pending: true, row_remap_failure: true, retired_pages_total: 3 }))).toBe("row remap failed, 3 retired pages");
    expect(remapText(device({ row_remap_pending: false }))).toBe("no row waits");
    expect(remapText(device({}))).toBe("row remap not reported");
  });

  it("knows an idle device from one that is held back", () => {
    expect(heldBack(device({ throttle_reasons: ["gpu_idle"] }))).toBe("not held back");
    expect(heldBack(device({ throttle_reasons: ["hw_thermal_slowdown", "gpu_idle"] }))).toBe("too hot, slowed by its hardware");
    expect(heldBack(device({}))).toBe(MISSING);
  });

  it("shows the parts of the score by their share", () => {
    expect(partsText(device({ risk_parts: { temperature: 0.25, power: 0, errors: 0.125 } }))).toBe("temperature 0.25, errors 0.13");
    expect(partsText(device({}))).toBe("");
  });

  it("names an XID with its meaning and a reading by its name", () => {
    expect(signalText(signal({ evidence: { meaning: "GPU has fallen off the bus" } }))).toBe("XID 79: GPU has fallen off the bus");
    expect(signalText(signal({ kind: "device_reading", evidence: { reading: "ecc_uncorrected" } }))).toMatch(/ecc uncorrected/i);
  });

  it("shows a missing cost of the agent as missing, not as nothing", () => {
    expect(percent(null, 1)).toBe(MISSING);
    expect(bytes(null)).toBe(MISSING);
  });
});
