/* Readings around a fault: which charts are drawn, in which order, and when they are asked for again. */
import { describe, expect, it } from "vitest";
import { againInMs, readingsAgainInMs } from "../api/queries";
import type { DeviceAround, IncidentReadings, ReadingAround } from "../api/types";
import { pointAt } from "../ui/Chart";
import { chartsOf, markersAround, namesOf, notable } from "./around";

const reading = (name: string, low: number, high: number, level: ReadingAround["level"] = "steady"): ReadingAround => ({
  reading: name, title: name, unit: "", before: low, low, high, after: high, change: high - low, level, sentence: level === "steady" ? "" : `${name} moved.`, at: null,
});
const device = (node: string, index: number, readings: ReadingAround[]): DeviceAround => ({
  node_id: `node_${node}`, node_name: node, index, note: "", readings, not_reported: [], gaps: [], gaps_left_out: 0, xids: [], xids_left_out: 0, series: null,
});

describe("readings around a fault", () => {
  it("draws what moved, what passed a limit first, and says what the rest was", () => {
    const devices = [
      device("n1", 0, [reading("temperature_c", 60, 61), reading("ecc_uncorrected_total", 0, 0), reading("power_limit_w", 700, 700)]),
      device("n1", 1, [reading("temperature_c", 60, 61), reading("ecc_uncorrected_total", 0, 2, "limit"), reading("power_limit_w", 600, 600)]),
    ];
    const { moved, still } = chartsOf(devices);
    expect(moved.map((chart) => chart.metric)).toEqual(["ecc_uncorrected_total", "temperature_c"]);
    expect(still.map(({ chart, values }) => [chart.metric, values])).toEqual([["power_limit_w", [700, 600]]]);
    expect(devices.map((each) => notable(each).length)).toEqual([0, 1]);
  });
  it("names the node of a line only where there are several", () => {
    expect(namesOf([device("n1", 0, []), device("n1", 1, [])])).toEqual(["gpu 0", "gpu 1"]);
    expect(namesOf([device("n1", 0, []), device("n2", 0, [])])).toEqual(["n1 gpu 0", "n2 gpu 0"]);
  });
  it("marks the fault, and its detection where there was one", () => {
    const around = { fault_at: "2026-11-25T12:00:00Z", detected_at: null } as IncidentReadings;
    expect(markersAround(around).map((marker) => marker.text)).toEqual(["fault"]);
    expect(markersAround({ ...around, detected_at: "2026-11-25T12:00:05Z" }).map((marker) => marker.x)).toEqual([1795608000, 1795608005]);
  });
  it("asks again when the time is over, and never sooner than the other reads", () => {
    expect(againInMs("2026-11-25T12:02:00Z", Date.parse("2026-11-25T12:00:00Z"))).toBe(125_000);
    expect(againInMs("2026-11-25T12:02:00Z", Date.parse("2026-11-25T12:05:00Z"))).toBe(15_000);
  });
  it("asks with each poll while what a device sent may still come, and no more when it has or cannot", () => {
    const read = { complete: true, awaited: true, until: "2026-11-25T12:02:00Z", devices: [device("n1", 0, [])] };
    const nowMs = Date.parse("2026-11-25T12:02:01Z");
    const there = [{ ...device("n1", 0, []), series: { index: 0 } as DeviceAround["series"] }];
    expect(readingsAgainInMs(read, nowMs)).toBe(15_000);
    expect(readingsAgainInMs({ ...read, devices: there }, nowMs)).toBe(false);
    expect(readingsAgainInMs({ ...read, awaited: false }, nowMs)).toBe(false);
    expect(readingsAgainInMs({ ...read, complete: false, devices: there }, Date.parse("2026-11-25T12:00:00Z"))).toBe(125_000);
  });
  it("shows in the legend a line's own point, and nothing in a hole", () => {
    expect(pointAt([1, undefined, undefined], 2)).toBe(0);
    expect(pointAt([1, null, undefined], 2)).toBe(1);
    expect(pointAt([1, 2, 3], 1)).toBe(1);
  });
});
