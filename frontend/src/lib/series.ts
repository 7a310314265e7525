/* From committed steps to what the charts draw. Pure. */
import type { Incident } from "../api/incidents";
import type { Checkpoint, Step } from "../api/types";
import { shortId } from "./format";

export interface Marker {
  x: number;
  kind: "epoch" | "incident" | "checkpoint";
  text: string;
}

/** One point a step: where an attempt repeated steps, the newest attempt's value is what was kept. */
export function keptSteps(steps: readonly Step[]): Step[] {
  const byStep = new Map<number, Step>();
  for (const step of steps) {
    const known = byStep.get(step.step);
    if (!known || step.attempt >= known.attempt) byStep.set(step.step, step);
  }
  return [...byStep.values()].sort((a, b) => a.step - b.step);
}

export function markersOf(steps: readonly Step[], incidents: readonly Incident[], checkpoints: readonly Checkpoint[]): Marker[] {
  const markers: Marker[] = [];
  for (let i = 1; i < steps.length; i += 1) {
    const step = steps[i]!;
    if (step.epoch !== steps[i - 1]!.epoch) markers.push({ x: step.step, kind: "epoch", text: `epoch ${step.epoch}` });
  }
  for (const incident of incidents) {
    const at = stepAt(steps, Date.parse(incident.opened_at));
    if (at !== null) markers.push({ x: at, kind: "incident", text: incident.title || shortId(incident.id) });
  }
  for (const checkpoint of checkpoints) {
    if (checkpoint.state !== "corrupt" && checkpoint.state !== "writing") markers.push({ x: checkpoint.step, kind: "checkpoint", text: `checkpoint ${checkpoint.step}${checkpoint.state === "pruned" ? ", removed since" : ""}` });
  }
  return markers;
}

/** The first step committed at or after a moment; null when the moment lies outside the known steps. */
export function stepAt(steps: readonly Step[], ms: number): number | null {
  let low = 0;
  let high = steps.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (Date.parse(steps[mid]!.at) < ms) low = mid + 1;
    else high = mid;
  }
  if (low === 0 && steps.length > 0 && Date.parse(steps[0]!.at) > ms) return null;
  return steps[low]?.step ?? null;
}
