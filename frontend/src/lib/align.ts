/* Series of several devices on one time axis, as the chart wants them. Pure. */
import type { DeviceSeries } from "../api/types";

export type Metric = Exclude<keyof DeviceSeries, "index" | "t">;
/** Null: nothing was read, so nothing is drawn. Undefined: a moment of another device, the line goes on. */
export type Point = number | null | undefined;
/** Moments further apart than this many usual distances have a hole between them. */
const GAP_FACTOR = 3;

/** `x`: all sampled moments, ascending, and one in each hole; `ys[i][k]`: device i at x[k]. */
export function alignSeries(devices: readonly DeviceSeries[], metric: Metric): { x: number[]; ys: Point[][] } {
  const holes = devices.map((device) => holesOf(device.t));
  const x = [...new Set([...devices.flatMap((device) => device.t), ...holes.flat()])].sort((a, b) => a - b);
  const at = new Map(x.map((t, i) => [t, i]));
  const ys = devices.map((device, d) => {
    const line = Array.from<unknown, Point>({ length: x.length }, () => undefined);
    device.t.forEach((t, i) => {
      line[at.get(t)!] = device[metric]?.[i] ?? null;
    });
    for (const t of holes[d]!) line[at.get(t)!] = null;
    return line;
  });
  return { x, ys };
}

/** A moment inside each hole of ascending times `t`. */
function holesOf(t: readonly number[]): number[] {
  const steps = t.slice(1).map((at, i) => at - t[i]!);
  const usual = [...steps].sort((a, b) => a - b)[steps.length >> 1] ?? 0;
  return steps.flatMap((step, i) => (usual > 0 && step > GAP_FACTOR * usual ? [(t[i]! + t[i + 1]!) / 2] : []));
}
