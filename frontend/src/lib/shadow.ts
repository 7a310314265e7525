/* What is said of a policy that runs beside the live one. */
import type { Shadow } from "../api/types";
import { gpuSeconds } from "./format";

type Agreement = "alike" | "reworded" | "other" | "acts" | "holds";

export const AGREEMENTS: { id: Agreement; label: string; means: string }[] = [
  { id: "alike", label: "Alike", means: "The same act" },
  { id: "reworded", label: "Reworded", means: "The same act for other thresholds or prices" },
  { id: "other", label: "Other act", means: "Another act" },
  { id: "acts", label: "Acts", means: "It acts where the live policy held" },
  { id: "holds", label: "Holds", means: "It holds where the live policy acted" },
];

const ENDED: Record<string, string> = {
  promoted: "was promoted",
  stopped: "was stopped",
  fell_back: "is in force again, by itself",
  kept: "ended: the promoted policy stays",
  superseded: "ended: somebody changed the policy",
};

export function standing(shadow: Shadow): string {
  const name = `Shadow ${shadow.run}`;
  if (shadow.state !== "running") return `${name} ${ENDED[shadow.state] ?? shadow.state}. It began`;
  return shadow.role === "watch" ? `${name} watches version ${shadow.live_number}, since` : `${name} decides beside version ${shadow.live_number}, since`;
}

export function priced(shadow: Shadow): string {
  const { decisions, differing, continued, expected, unpriced } = shadow.score;
  return `${decisions} ${decisions === 1 ? "decision" : "decisions"} compared, ${differing} ${differing === 1 ? "differs" : "differ"}: ${continued} continued in the simulator, ${expected} by their own prices, ${unpriced} without a price, ${shadow.waiting} still to come.`;
}

export function scored(shadow: Shadow): string {
  const { incidents, live_gpu_s, change_gpu_s, error_gpu_s } = shadow.score;
  const whose = shadow.role === "watch" ? "the policy before it" : "it";
  return `Over ${incidents} ${incidents === 1 ? "incident" : "incidents"} that it answers otherwise, ${whose} would have wasted ${gpuSeconds(Math.abs(change_gpu_s))} ${change_gpu_s < 0 ? "less" : "more"} (+/- ${gpuSeconds(error_gpu_s)}); all that were compared cost ${gpuSeconds(live_gpu_s)}.`;
}

export function mayBePromoted(shadow: Shadow): boolean {
  return shadow.role === "candidate" && shadow.state === "running" && shadow.below.length === 0;
}
