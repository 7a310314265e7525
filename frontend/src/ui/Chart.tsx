/* uPlot in React: made once per size and theme, then fed by `setData` without a render. What the
   reader has zoomed into stays while new points arrive, until the zoom is given back. */
import "uplot/dist/uPlot.min.css";
import { type ReactElement, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import uPlot from "uplot";
import { useDark, useSettings } from "../lib/settings";
import { clock, relative } from "../lib/time";
import type { Marker } from "../lib/series";
import { token, useWidth } from "./drawing";

export interface Line {
  label: string;
  /** Name of a colour token: --ok-solid and so on. */
  token: string;
  format: (value: number) => string;
  dash?: number[];
  points?: boolean;
}

interface ChartProps {
  label: string;
  x: readonly number[];
  /** Null: a gap; undefined: no point here, the line goes on. */
  ys: readonly (readonly (number | null | undefined)[])[];
  lines: Line[];
  /** "step": counts; "time": Unix seconds, shown in the chosen zone. */
  xKind: "step" | "time";
  height?: number;
  markers?: Marker[];
  yRange?: Bounds;
  /* The axis spans at least this much, so that noise looks like noise. */
  ySpan?: number;
  /* Where two ticks must not read the same. */
  ticks?: keyof typeof TICKS;
  /* With no cursor over it the legend shows the values at this x; without it the newest. */
  restAt?: number;
}

const MARKER_TOKEN: Record<Marker["kind"], string> = { epoch: "--special-solid", incident: "--bad-solid", checkpoint: "--ok-solid", detected: "--special-solid" };
const MARKER_DASH: Record<Marker["kind"], number[]> = { epoch: [4, 3], incident: [], checkpoint: [1, 3], detected: [4, 3] };


type Bounds = readonly [number | null, number | null];
/** Distances of ticks: whole, for what is counted or rounded to whole numbers; binary, for bytes. */
const TICKS = {
  whole: [1, 2, 5].flatMap((digit) => Array.from({ length: 13 }, (_, power) => digit * 10 ** power)).sort((a, b) => a - b),
  binary: Array.from({ length: 51 }, (_, power) => 2 ** power),
};

/** [low, high] of an axis around the data, at least `span` apart; `bounds` are fixed ends. It goes below
    zero only where a value does: nobody counts -2 errors. Null: there is no value. */
export function axisRange(min: number | null, max: number | null, bounds: Bounds = [null, null], span = 0): [number, number] {
  if (min === null || max === null || (min === 0 && max === 0)) return [bounds[0] ?? 0, bounds[1] ?? Math.max(span, 1)];
  const around = uPlot.rangeNum(min, max, 0.1, true);
  const missing = Math.max(0, span - (max - min)) / 2;
  const [free, top] = span > 0 ? [Math.floor(min - missing), Math.ceil(max + missing)] : [around[0] ?? min, around[1] ?? max];
  const low = bounds[0] ?? (min >= 0 ? Math.max(0, free) : free);
  const high = bounds[1] ?? Math.max(top, low + span);
  return [low, high > low ? high : low + 1];
}

export function Chart(props: ChartProps): ReactElement {
  const [box, width] = useWidth();
  const dark = useDark();
  const { time } = useSettings();
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const zoom = useRef<Zoom | null>(null);
  const [zoomed, setZoomed] = useState(false);
  const onZoom = (next: Zoom | null): void => {
    zoom.current = next;
    setZoomed(next !== null);
  };
  const shape = props.lines.map((line) => line.label).join("|");
  const data = useMemo(() => [props.x, ...props.ys] as unknown as uPlot.AlignedData, [props.x, props.ys]);
  useEffect(() => {
    if (width === 0 || !box.current) return undefined;
    const kept = zoom.current;
    const made = new uPlot(optionsOf(() => latest.current, width, time, onZoom), data, box.current);
    plot.current = made;
    if (kept) made.setScale("x", { min: kept[0], max: kept[1] });
    restLegend(made, latest.current.restAt);
    return () => {
      made.destroy();
      plot.current = null;
    };
    /* `data` is fed by the effect below; a new plot is needed only for size, theme, zone and shape. */
  }, [width, dark, time, shape]); // eslint-disable-line react-hooks/exhaustive-deps
  /* With the header's figures, in one frame. */
  useLayoutEffect(() => {
    if (!plot.current) return;
    feed(plot.current, data, zoom.current);
    restLegend(plot.current, latest.current.restAt);
  }, [data]);
  useEffect(() => plot.current?.redraw(false), [props.markers]);
  const unzoom = (): void => {
    onZoom(null);
    if (plot.current) feed(plot.current, data, null);
  };
  return (
    <div className="chart-box">
      <div ref={box} className="chart" role="img" aria-label={summaryOf(props)} style={{ minHeight: props.height ?? 190 }} />
      {zoomed ? <button type="button" className="button small unzoom" onClick={unzoom} aria-label={`Reset the zoom of ${props.label}`}>Reset zoom</button> : null}
    </div>
  );
}

type Zoom = readonly [number, number];

/** New points: the whole range without a zoom, else the zoomed one as it is. */
export function feed(u: Pick<uPlot, "setData" | "setScale">, data: uPlot.AlignedData, zoom: Zoom | null): void {
  u.setData(data, zoom === null);
  if (zoom) u.setScale("x", { min: zoom[0], max: zoom[1] });
}

/** The part of the axis that is shown where that is less than all of `x`; null where it is all. */
export function zoomOf(min: number | null | undefined, max: number | null | undefined, x: ArrayLike<number>): Zoom | null {
  const last = x.length - 1;
  if (last < 1 || min === null || max === null || min === undefined || max === undefined) return null;
  return min > x[0]! || max < x[last]! ? [min, max] : null;
}

/** What a chart says to those who cannot see it: the newest value of each line. */
function summaryOf({ label, lines, ys }: ChartProps): string {
  const parts = lines.map((line, i) => {
    const value = ys[i]?.findLast((y) => y !== null && y !== undefined);
    return `${line.label} ${value === undefined || value === null ? "not reported" : line.format(value)}`;
  });
  return `${label}: ${parts.join(", ")}`;
}

function optionsOf(props: () => ChartProps, width: number, time: "local" | "utc" | "relative", onZoom: (zoom: Zoom | null) => void): uPlot.Options {
  const { lines, xKind, height = 190, yRange, ySpan = 0, ticks } = props();
  const text = (seconds: number): string => (time === "relative" ? relative(seconds * 1000, Date.now()) : clock(seconds * 1000, time));
  const axis = { stroke: token("--muted"), grid: { stroke: token("--line"), width: 1 }, ticks: { stroke: token("--line"), width: 1 }, font: "11px system-ui, sans-serif" };
  return {
    width,
    height,
    cursor: { points: { size: 6 }, drag: { x: true, y: false } },
    legend: { live: true },
    scales: { x: { time: xKind === "time" }, y: { range: (_u, min, max) => axisRange(min, max, yRange, ySpan) } },
    axes: [
      { ...axis, values: xKind === "time" ? (_u, splits) => splits.map(text) : (_u, splits) => splits.map((v) => (Number.isInteger(v) ? v.toLocaleString("en-US") : "")), space: 80, size: 30 },
      { ...axis, ...(ticks ? { incrs: TICKS[ticks] } : {}), size: (_u, values) => Math.max(44, 18 + 6.4 * Math.max(0, ...(values ?? []).map((value) => value.length))), values: (_u, splits) => splits.map((value) => lines[0]!.format(value)) },
    ],
    series: [
      { label: xKind === "time" ? "time" : "step", value: (_u, value) => (value === null ? "-" : xKind === "time" ? text(value) : value.toLocaleString("en-US")) },
      ...lines.map((line): uPlot.Series => ({
        label: line.label, stroke: token(line.token), width: 1.6, dash: line.dash, spanGaps: false,
        points: { show: line.points ?? false, size: 4 }, value: (_u, value) => (value === null || value === undefined ? "-" : line.format(value)),
      })),
    ],
    hooks: {
      setScale: [(u, key) => key === "x" && onZoom(zoomOf(u.scales["x"]?.min, u.scales["x"]?.max, u.data[0]))],
      setCursor: [(u) => restLegend(u, props().restAt)],
      drawClear: [(u) => drawMarkers(u, props().markers ?? [])],
    },
  };
}

/** With no cursor over the chart the legend shows the newest point, or the one at `at`, instead of dashes. */
function restLegend(u: uPlot, at: number | undefined): void {
  if (u.cursor.idx !== null && u.cursor.idx !== undefined) return;
  const last = at === undefined ? u.data[0].length - 1 : u.data[0].findLastIndex((x) => x <= at);
  if (last >= 0) u.setLegend({ idxs: u.data.map((line, i) => (i === 0 ? last : pointAt(line, last))) }, false);
}

/** Where this line's own point is, at or before `index`: moments of other lines are passed over, a hole is not. */
export function pointAt(line: ArrayLike<number | null | undefined>, index: number): number {
  let at = index;
  while (at > 0 && line[at] === undefined) at -= 1;
  return at;
}

function drawMarkers(u: uPlot, markers: readonly Marker[]): void {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  for (const marker of markers) {
    const x = u.valToPos(marker.x, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = token(MARKER_TOKEN[marker.kind]);
    ctx.setLineDash(MARKER_DASH[marker.kind].map((d) => d * devicePixelRatio));
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}
