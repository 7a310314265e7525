/* uPlot in React: made once per size and theme, then fed by `setData` without a render. */
import "uplot/dist/uPlot.min.css";
import { type ReactElement, useEffect, useMemo, useRef, useState } from "react";
import uPlot from "uplot";
import { useDark, useSettings } from "../lib/settings";
import { clock, relative } from "../lib/time";
import type { Marker } from "../lib/series";

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
  ys: readonly (readonly (number | null)[])[];
  lines: Line[];
  /** "step": counts; "time": Unix seconds, shown in the chosen zone. */
  xKind: "step" | "time";
  height?: number;
  markers?: Marker[];
  yRange?: [number | null, number | null];
  /* The axis spans at least this much, so that noise looks like noise. */
  ySpan?: number;
}

const MARKER_TOKEN: Record<Marker["kind"], string> = { epoch: "--special-solid", incident: "--bad-solid", checkpoint: "--ok-solid" };
const MARKER_DASH: Record<Marker["kind"], number[]> = { epoch: [4, 3], incident: [], checkpoint: [1, 3] };

const token = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/* [low, high] around the data, at least `span` apart. */
function spread(min: number, max: number, span: number): [number, number] {
  const missing = Math.max(0, span - (max - min)) / 2;
  return [Math.floor(min - missing), Math.ceil(max + missing)];
}

function useWidth(): [React.RefObject<HTMLDivElement | null>, number] {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const observer = new ResizeObserver(() => setWidth(Math.floor(element.clientWidth)));
    observer.observe(element);
    setWidth(Math.floor(element.clientWidth));
    return () => observer.disconnect();
  }, []);
  return [box, width];
}

export function Chart(props: ChartProps): ReactElement {
  const [box, width] = useWidth();
  const dark = useDark();
  const { time } = useSettings();
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const shape = props.lines.map((line) => line.label).join("|");
  const data = useMemo(() => [props.x, ...props.ys] as unknown as uPlot.AlignedData, [props.x, props.ys]);
  useEffect(() => {
    if (width === 0 || !box.current) return undefined;
    const made = new uPlot(optionsOf(() => latest.current, width, time), data, box.current);
    plot.current = made;
    restLegend(made);
    return () => {
      made.destroy();
      plot.current = null;
    };
    /* `data` is fed by the effect below; a new plot is needed only for size, theme, zone and shape. */
  }, [width, dark, time, shape]); // eslint-disable-line react-hooks/exhaustive-deps
  useEffect(() => {
    if (!plot.current) return;
    plot.current.setData(data);
    restLegend(plot.current);
  }, [data]);
  useEffect(() => plot.current?.redraw(false), [props.markers]);
  return <div ref={box} className="chart" role="img" aria-label={summaryOf(props)} style={{ minHeight: props.height ?? 190 }} />;
}

/** What a chart says to those who cannot see it: the newest value of each line. */
function summaryOf({ label, lines, ys }: ChartProps): string {
  const parts = lines.map((line, i) => {
    const value = ys[i]?.findLast((y) => y !== null);
    return `${line.label} ${value === undefined || value === null ? "not reported" : line.format(value)}`;
  });
  return `${label}: ${parts.join(", ")}`;
}

function optionsOf(props: () => ChartProps, width: number, time: "local" | "utc" | "relative"): uPlot.Options {
  const { lines, xKind, height = 190, yRange, ySpan = 0 } = props();
  const text = (seconds: number): string => (time === "relative" ? relative(seconds * 1000, Date.now()) : clock(seconds * 1000, time));
  const axis = { stroke: token("--muted"), grid: { stroke: token("--line"), width: 1 }, ticks: { stroke: token("--line"), width: 1 }, font: "11px system-ui, sans-serif" };
  return {
    width,
    height,
    cursor: { points: { size: 6 }, drag: { x: true, y: false } },
    legend: { live: true },
    scales: { x: { time: xKind === "time" }, y: yRange ? { range: (_u, min, max) => [yRange[0] ?? min, yRange[1] ?? max] } : ySpan ? { range: (_u, min, max) => spread(min, max, ySpan) } : {} },
    axes: [
      { ...axis, values: xKind === "time" ? (_u, splits) => splits.map(text) : (_u, splits) => splits.map((v) => (Number.isInteger(v) ? v.toLocaleString("en-US") : "")), space: 80, size: 30 },
      { ...axis, size: (_u, values) => Math.max(44, 18 + 6.4 * Math.max(0, ...(values ?? []).map((value) => value.length))), values: (_u, splits) => splits.map((value) => lines[0]!.format(value)) },
    ],
    series: [
      { label: xKind === "time" ? "time" : "step", value: (_u, value) => (value === null ? "-" : xKind === "time" ? text(value) : value.toLocaleString("en-US")) },
      ...lines.map((line): uPlot.Series => ({
        label: line.label, stroke: token(line.token), width: 1.6, dash: line.dash, spanGaps: false,
        points: { show: line.points ?? false, size: 4 }, value: (_u, value) => (value === null || value === undefined ? "-" : line.format(value)),
      })),
    ],
    hooks: { setCursor: [restLegend], drawClear: [(u) => drawMarkers(u, props().markers ?? [])] },
  };
}

/** With no cursor over the chart the legend shows the newest point instead of dashes. */
function restLegend(u: uPlot): void {
  const last = u.data[0].length - 1;
  if (last >= 0 && (u.cursor.idx === null || u.cursor.idx === undefined)) u.setLegend({ idx: last }, false);
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
