/* A job's effective time in words: the figure, and what it rests on or why there is none. Pure. */
import type { Job } from "../api/types";
import { percent } from "./format";

const WORDS: Record<string, { word: string; why: string }> = {
  observed: { word: "", why: "Full strength was seen." },
  estimated: { word: "estimated", why: "Not all that the job asked for has trained yet: its full strength is worked out from the devices that have." },
  too_few_steps: { word: "too few steps", why: "There are too few undisturbed steps yet." },
  not_counted: { word: "not counted", why: "The job ended before commits were counted." },
};

const PARTS = [
  ["productive", "productive_s"], ["degraded", "degraded_s"], ["stalled", "stalled_s"], ["start and recovery", "recovery_s"],
  ["lost work", "lost_s"], ["checkpoints", "checkpoint_s"],
] as const;

/** Where the wall time went, largest first; parts below a twentieth of a percent are left out. */
export function wallParts(job: Pick<Job, "wall">): { what: string; share: string }[] {
  const wall = job.wall;
  if (!wall || wall.wall_s <= 0) return [];
  return PARTS.map(([what, field]) => ({ what, ratio: wall[field] / wall.wall_s }))
    .filter(({ ratio }) => Math.abs(ratio) >= 0.0005)
    .sort((a, b) => b.ratio - a.ratio)
    .map(({ what, ratio }) => ({ what, share: percent(ratio, 1) }));
}

/** `figure` null: there is none, and `word` says why. */
export function ettrOf(job: Pick<Job, "ettr" | "ettr_basis">): { figure: string | null; word: string; why: string } {
  return { figure: job.ettr === null ? null : percent(job.ettr, 1), ...(WORDS[job.ettr_basis] ?? { word: job.ettr_basis, why: "" }) };
}
