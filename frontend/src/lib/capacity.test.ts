import { describe, expect, it } from "vitest";
import type { Capacity, CapacityCounts } from "../api/types";
import { capacityRows, leftOut, USES } from "./capacity";

const counts = (devices: number): CapacityCounts => ({ nodes: 1, devices, in_use: devices, leaving: 0, free: 0, reserved: 0, spare: 0, draining: 0, cordoned: 0, down: 0 });

function capacity(segments: string[], left_out = 0): Capacity {
  const type = { gpu_type: "H100", counts: counts(8 * segments.length), segments: segments.map((segment) => ({ segment, counts: counts(8) })), left_out };
  return {
    as_of_seq: 1, at: "2026-01-01T00:00:00Z", waiting: 0, counts: type.counts, types: [type], types_left_out: 0,
    ends: [], ends_count: 0, ends_unknown: 0, yields: [], yields_count: 0, reserved: [], reserved_count: 0,
  };
}

describe("the fleet's devices", () => {
  it("are one row where a type lies in one segment", () => {
    expect(capacityRows(capacity(["rail-1"])).map((row) => row.segment)).toEqual(["rail-1"]);
  });
  it("are a sum and a row for each of several segments", () => {
    const rows = capacityRows(capacity(["", "rail-1"]));
    expect(rows.map((row) => [row.segment, row.counts.devices])).toEqual([[null, 16], ["", 8], ["rail-1", 8]]);
    expect(new Set(rows.map((row) => row.key)).size).toBe(3);
  });
  it("say how many segments are not listed", () => {
    expect(leftOut(capacity(["a"], 7))).toBe(7);
    expect(capacityRows(capacity(["a"], 7)).length).toBe(2);
  });
  it("have a word for each class that the server counts", () => {
    const { nodes: _nodes, devices: _devices, leaving: _leaving, ...classes } = counts(1);
    expect(USES.map((use) => use.name).sort()).toEqual(Object.keys(classes).sort());
  });
});
