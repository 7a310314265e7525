/* Series of several devices on one time axis, as the chart wants them. Pure. */
import type { DeviceSeries } from "../api/types";

export type Metric = Exclude<keyof DeviceSeries, "index" | "t">;

/** `x`: all sampled moments, ascending; `ys[i][k]`: device i at x[k], null where it has no sample. */
export function alignSeries(devices: readonly DeviceSeries[], metric: Metric): { x: number[]; ys: (number | null)[][] } {
  const same = devices.every((device) => device.t.length === devices[0]!.t.length && device.t[0] === devices[0]!.t[0]);
  if (same && devices.length > 0) return { x: devices[0]!.t, ys: devices.map((device) => device[metric] ?? device.t.map(() => null)) };
  const x = [...new Set(devices.flatMap((device) => device.t))].sort((a, b) => a - b);
  const at = new Map(x.map((t, i) => [t, i]));
  const ys = devices.map((device) => {
    const line = Array.from<unknown, number | null>({ length: x.length }, () => null);
    device.t.forEach((t, i) => {
      line[at.get(t)!] = device[metric]?.[i] ?? null;
    });
    return line;
  });
  return { x, ys };
}
