/* From committed steps to what the charts draw. Pure. */
import type { Checkpoint, Incident, Step } from "../api/types";
import { shortId } from "./format";
import { doneWith } from "./jobnow";

export interface Marker {
  x: number;
  kind: "epoch" | "incident" | "checkpoint" | "detected";
  text: string;
}

/** One point a step: where an attempt repeated steps, the newest attempt's value is what was kept, and
    what an older attempt did beyond the newer one's first step was lost. */
export function keptSteps(steps: readonly Step[]): Step[] {
  const firsts = new Map<number, number>();
  for (const step of steps) firsts.set(step.attempt, Math.min(step.step, firsts.get(step.attempt) ?? Infinity));
  const lostFrom = (attempt: number): number => Math.min(...[...firsts].filter(([other]) => other > attempt).map(([, first]) => first), Infinity);
  const limits = new Map([...firsts.keys()].map((attempt) => [attempt, lostFrom(attempt)]));
  return steps.filter((step) => step.step < limits.get(step.attempt)!).sort((a, b) => a.step - b.step);
}

export function markersOf(steps: readonly Step[], incidents: readonly Incident[], checkpoints: readonly Checkpoint[]): Marker[] {
  const markers: Marker[] = [];
  for (let i = 1; i < steps.length; i += 1) {
    const step = steps[i]!;
    if (step.epoch !== steps[i - 1]!.epoch) markers.push({ x: doneWith(step), kind: "epoch", text: `epoch ${step.epoch}` });
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

/** How many steps were committed with the first one at or after a moment; null when the moment lies outside the known steps. */
export function stepAt(steps: readonly Step[], ms: number): number | null {
  let low = 0;
  let high = steps.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (Date.parse(steps[mid]!.at) < ms) low = mid + 1;
    else high = mid;
  }
  if (low === 0 && steps.length > 0 && Date.parse(steps[0]!.at) > ms) return null;
  const step = steps[low];
  return step ? doneWith(step) : null;
}
