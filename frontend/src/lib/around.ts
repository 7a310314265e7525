/* Device readings around an incident's fault, as its page shows them. Pure. */
import type { DeviceAround, DeviceSeries, IncidentReadings, ReadingAround } from "../api/types";
import { CHARTS, type ReadingChart } from "./readings.gen";
import type { Marker } from "./series";

/** What the lines of a chart are called: the node too where there are several. */
export function namesOf(devices: readonly DeviceAround[]): string[] {
  const several = new Set(devices.map((device) => device.node_id)).size > 1;
  return devices.map((device) => (several ? `${device.node_name} gpu ${device.index}` : `gpu ${device.index}`));
}

export function markersAround(around: IncidentReadings): Marker[] {
  const fault: Marker = { x: Date.parse(around.fault_at) / 1000, kind: "incident", text: "fault" };
  return around.detected_at ? [fault, { x: Date.parse(around.detected_at) / 1000, kind: "detected", text: "detected" }] : [fault];
}

/** The chart of a reading that moved on any device, what is out of the ordinary first; of the others, what they were. */
export function chartsOf(devices: readonly DeviceAround[]): { moved: ReadingChart[]; still: { chart: ReadingChart; values: number[] }[] } {
  const found = CHARTS.map((chart) => ({ chart, readings: devices.flatMap((device) => device.readings.filter((reading) => reading.reading === chart.metric)) })).filter(({ readings }) => readings.length > 0);
  const moves = (reading: ReadingAround): boolean => reading.low !== reading.high;
  const first = ({ readings }: { readings: ReadingAround[] }): number => Math.min(...readings.map((reading) => LEVELS.indexOf(reading.level)));
  return {
    moved: found.filter(({ readings }) => readings.some(moves)).sort((a, b) => first(a) - first(b)).map(({ chart }) => chart),
    still: found.filter(({ readings }) => !readings.some(moves)).map(({ chart, readings }) => ({ chart, values: [...new Set(readings.flatMap((reading) => reading.low ?? []))] })),
  };
}

const LEVELS: ReadingAround["level"][] = ["limit", "changed", "left_range", "steady"];

export const notable = (device: DeviceAround): ReadingAround[] => device.readings.filter((reading) => reading.level !== "steady");

export const seriesOf = (devices: readonly DeviceAround[]): DeviceSeries[] => devices.flatMap((device) => device.series ?? []);
