/* Generated from controlplane/protocol/readings.py by `make generated`; do not edit. */
import type { Metric } from "./align";

export type Shown = "bytes" | "celsius" | "count" | "megahertz" | "percent" | "remap" | "score" | "throttled" | "watts";

export interface ReadingChart {
  metric: Metric;
  title: string;
  shown: Shown;
  range?: [number | null, number | null];
  span?: number;
  ticks?: "whole" | "binary";
}

export const CHARTS: ReadingChart[] = [
  { metric: "temperature_c", title: "Temperature", shown: "celsius", span: 20, ticks: "whole" },
  { metric: "power_w", title: "Power", shown: "watts", ticks: "whole" },
  { metric: "utilization_ratio", title: "Utilisation", shown: "percent", range: [0, 1] },
  { metric: "risk", title: "Risk", shown: "score", range: [0, 1] },
  { metric: "memory_used_bytes", title: "Memory used", shown: "bytes", ticks: "binary" },
  { metric: "sm_clock_mhz", title: "SM clock", shown: "megahertz", ticks: "whole" },
  { metric: "ecc_uncorrected_total", title: "Uncorrectable memory errors", shown: "count", span: 4, ticks: "whole" },
  { metric: "ecc_corrected_total", title: "Corrected memory errors", shown: "count", span: 4, ticks: "whole" },
  { metric: "row_remap", title: "Row remap", shown: "remap", range: [0, 2], ticks: "whole" },
  { metric: "retired_pages_total", title: "Retired pages", shown: "count", span: 4, ticks: "whole" },
  { metric: "throttled", title: "Throttled", shown: "throttled", range: [0, 1], ticks: "whole" },
  { metric: "memory_temperature_c", title: "Memory temperature", shown: "celsius", span: 20, ticks: "whole" },
  { metric: "power_limit_w", title: "Power limit", shown: "watts", span: 100, ticks: "whole" },
  { metric: "memory_utilization_ratio", title: "Memory bandwidth in use", shown: "percent", range: [0, 1] },
  { metric: "pcie_replay_total", title: "PCIe replays", shown: "count", span: 4, ticks: "whole" },
  { metric: "nvlink_error_total", title: "NVLink errors", shown: "count", span: 4, ticks: "whole" },
];
