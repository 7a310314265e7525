/* A node's devices over time: one small chart a metric, one line a device. */
import { useQuery } from "@tanstack/react-query";
import { type ReactElement, useMemo } from "react";
import { useSearchParams } from "react-router";
import { useSetParam } from "../lib/params";
import * as queries from "../api/queries";
import type { DeviceSeries } from "../api/types";
import { bytes, MISSING } from "../lib/format";
import { alignSeries } from "../lib/align";
import { CHARTS, type ReadingChart, type Shown } from "../lib/readings.gen";
import type { Marker } from "../lib/series";
import { Empty, Loaded, Panel, Skeleton } from "../ui/basics";
import { Chart, type Line } from "../ui/Chart";

const REMAP = ["nothing", "waits for a reset", "failed"];
export const SHOWN: Record<Shown, (value: number) => string> = {
  celsius: (v) => `${v.toFixed(0)} C`,
  watts: (v) => `${v.toFixed(0)} W`,
  percent: (v) => `${(v * 100).toFixed(0)} %`,
  score: (v) => v.toFixed(2),
  bytes,
  megahertz: (v) => `${v.toFixed(0)} MHz`,
  count: (v) => v.toFixed(0),
  remap: (v) => REMAP[v] ?? MISSING,
  throttled: (v) => (v > 0 ? "held back" : "free"),
};
const TOKENS = ["--info-solid", "--warn-solid", "--special-solid", "--ok-solid", "--bad-solid", "--idle-solid"];
const WINDOWS: { s: number; text: string }[] = [{ s: 600, text: "10 m" }, { s: 3_600, text: "1 h" }, { s: 86_400, text: "24 h" }];

/** `until`: the end of the window; the newest readings where it is not given. */
export function DeviceCharts({ nodeId, until = null }: { nodeId: string; until?: string | null }): ReactElement {
  const [params] = useSearchParams();
  const window = WINDOWS.find((item) => String(item.s) === params.get("window"))?.s ?? 600;
  const query = useQuery(queries.series(nodeId, window, until));
  const setParam = useSetParam();
  const choose = (s: number): void => setParam("window", String(s));
  const actions = (
    <div className="segments" role="group" aria-label="Window">
      {WINDOWS.map((item) => <button key={item.s} type="button" aria-pressed={item.s === window} onClick={() => choose(item.s)}>{item.text}</button>)}
    </div>
  );
  return (
    <Panel title="Readings" actions={actions}>
      <Loaded query={query} skeleton={<Skeleton height={180} />}>
        {({ devices }) =>
          devices.every((device) => device.t.length === 0) ? <Empty icon="hourglass" title={until === null ? "No reading in this window" : "No reading is kept for this time"} /> : (
            <div className="charts">{CHARTS.map((chart) => <MetricChart key={chart.metric} devices={devices} chart={chart} />)}</div>
          )
        }
      </Loaded>
    </Panel>
  );
}

interface MetricChartProps {
  devices: DeviceSeries[];
  chart: ReadingChart;
  /** What each line is called; its number unless given. */
  names?: string[];
  markers?: Marker[];
  restAt?: number;
}

export function MetricChart({ devices, chart, names, markers, restAt }: MetricChartProps): ReactElement {
  const { x, ys } = useMemo(() => alignSeries(devices, chart.metric), [devices, chart.metric]);
  const lines = devices.map((device, i): Line => ({
    label: names?.[i] ?? `gpu ${device.index}`, token: TOKENS[i % TOKENS.length]!, format: SHOWN[chart.shown],
    dash: i < TOKENS.length ? undefined : [5, 3],
  }));
  const reported = ys.some((line) => line.some((value) => value !== null && value !== undefined));
  return (
    <figure className="metric">
      <figcaption>{chart.title}</figcaption>
      {reported ? <Chart label={chart.title} x={x} ys={ys} lines={lines} xKind="time" height={150} yRange={chart.range} ySpan={chart.span} ticks={chart.ticks} markers={markers} restAt={restAt} /> : <p className="missing">not reported</p>}
    </figure>
  );
}
