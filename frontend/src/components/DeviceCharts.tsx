/* A node's devices over time: one small chart a metric, one line a device. */
import { useQuery } from "@tanstack/react-query";
import { type ReactElement, useMemo } from "react";
import { useSearchParams } from "react-router";
import * as queries from "../api/queries";
import type { DeviceSeries } from "../api/types";
import { bytes, MISSING } from "../lib/format";
import { alignSeries, type Metric } from "../lib/align";
import { Empty, Loaded, Panel, Skeleton } from "../ui/basics";
import { Chart, type Line } from "../ui/Chart";

const REMAP = ["nothing", "waits for a reset", "failed"];
const count = (value: number): string => value.toFixed(0);
const METRICS: { metric: Metric; title: string; format: (value: number) => string; range?: [number | null, number | null]; span?: number; ticks?: "whole" | "binary" }[] = [
  { metric: "temperature_c", title: "Temperature", format: (v) => `${v.toFixed(0)} C`, span: 20, ticks: "whole" },
  { metric: "power_w", title: "Power", format: (v) => `${v.toFixed(0)} W`, ticks: "whole" },
  { metric: "utilization_ratio", title: "Utilisation", format: (v) => `${(v * 100).toFixed(0)} %`, range: [0, 1] },
  { metric: "risk", title: "Risk", format: (v) => v.toFixed(2), range: [0, 1] },
  { metric: "memory_used_bytes", title: "Memory used", format: bytes, ticks: "binary" },
  { metric: "sm_clock_mhz", title: "SM clock", format: (v) => `${v.toFixed(0)} MHz`, ticks: "whole" },
  { metric: "ecc_uncorrected_total", title: "Uncorrectable memory errors", format: count, span: 4, ticks: "whole" },
  { metric: "ecc_corrected_total", title: "Corrected memory errors", format: count, span: 4, ticks: "whole" },
  { metric: "row_remap", title: "Row remap", format: (v) => REMAP[v] ?? MISSING, range: [0, 2], ticks: "whole" },
  { metric: "retired_pages_total", title: "Retired pages", format: count, span: 4, ticks: "whole" },
  { metric: "throttled", title: "Throttled", format: (v) => (v > 0 ? "held back" : "free"), range: [0, 1], ticks: "whole" },
  { metric: "memory_temperature_c", title: "Memory temperature", format: (v) => `${v.toFixed(0)} C`, span: 20, ticks: "whole" },
  { metric: "power_limit_w", title: "Power limit", format: (v) => `${v.toFixed(0)} W`, span: 100, ticks: "whole" },
  { metric: "memory_utilization_ratio", title: "Memory bandwidth in use", format: (v) => `${(v * 100).toFixed(0)} %`, range: [0, 1] },
  { metric: "pcie_replay_total", title: "PCIe replays", format: count, span: 4, ticks: "whole" },
  { metric: "nvlink_error_total", title: "NVLink errors", format: count, span: 4, ticks: "whole" },
];
const TOKENS = ["--info-solid", "--warn-solid", "--special-solid", "--ok-solid", "--bad-solid", "--idle-solid"];
const WINDOWS: { s: number; text: string }[] = [{ s: 600, text: "10 m" }, { s: 3_600, text: "1 h" }, { s: 86_400, text: "24 h" }];

export function DeviceCharts({ nodeId }: { nodeId: string }): ReactElement {
  const [params, setParams] = useSearchParams();
  const window = WINDOWS.find((item) => String(item.s) === params.get("window"))?.s ?? 600;
  const query = useQuery(queries.series(nodeId, window));
  const choose = (s: number): void =>
    setParams((now) => {
      const next = new URLSearchParams(now);
      next.set("window", String(s));
      return next;
    }, { replace: true, preventScrollReset: true });
  const actions = (
    <div className="segments" role="group" aria-label="Window">
      {WINDOWS.map((item) => <button key={item.s} type="button" aria-pressed={item.s === window} onClick={() => choose(item.s)}>{item.text}</button>)}
    </div>
  );
  return (
    <Panel title="Readings" actions={actions}>
      <Loaded query={query} skeleton={<Skeleton height={180} />}>
        {({ devices }) =>
          devices.every((device) => device.t.length === 0) ? <Empty icon="hourglass" title="No reading in this window" /> : (
            <div className="charts">{METRICS.map((item) => <MetricChart key={item.metric} devices={devices} {...item} />)}</div>
          )
        }
      </Loaded>
    </Panel>
  );
}

function MetricChart(props: { devices: DeviceSeries[]; metric: Metric; title: string; format: (value: number) => string; range?: [number | null, number | null]; span?: number; ticks?: "whole" | "binary" }): ReactElement {
  const { devices, metric } = props;
  const { x, ys } = useMemo(() => alignSeries(devices, metric), [devices, metric]);
  const lines = devices.map((device, i): Line => ({ label: `gpu ${device.index}`, token: TOKENS[i % TOKENS.length]!, format: props.format }));
  const reported = ys.some((line) => line.some((value) => value !== null && value !== undefined));
  return (
    <figure className="metric">
      <figcaption>{props.title}</figcaption>
      {reported ? <Chart label={props.title} x={x} ys={ys} lines={lines} xKind="time" height={150} yRange={props.range} ySpan={props.span} ticks={props.ticks} /> : <p className="missing">not reported</p>}
    </figure>
  );
}
