/* What devices are in use for: one record of words, and the rows of the table. */
import type { Capacity, CapacityCounts } from "../api/types";

export const USES = [
  { name: "in_use", text: "In use", meaning: "a job has it" },
  { name: "free", text: "Free", meaning: "the next job that fits gets it" },
  { name: "reserved", text: "Reserved", meaning: "free for the jobs of one project alone" },
  { name: "spare", text: "Kept as spare", meaning: "kept for a job, on a node of its spares" },
  { name: "draining", text: "Draining", meaning: "its node is being emptied, and takes no new work" },
  { name: "cordoned", text: "Cordoned", meaning: "a person keeps its node from new work" },
  { name: "down", text: "Down", meaning: "it, or its node, is of no use now: unhealthy, disconnected, quarantined or failing a check" },
] as const;

export interface CapacityRow {
  key: string;
  type: string;
  /** null: of all segments together. */
  segment: string | null;
  counts: CapacityCounts;
}

/** One for each type; below it one for each segment, where it lies in several. */
export function capacityRows(capacity: Capacity): CapacityRow[] {
  return capacity.types.flatMap((each) => {
    const several = each.segments.length + each.left_out > 1;
    const whole = { key: each.gpu_type, type: each.gpu_type, segment: several ? null : (each.segments[0]?.segment ?? ""), counts: each.counts };
    const parts = each.segments.map((part) => ({ key: `${each.gpu_type}/${part.segment}`, type: each.gpu_type, segment: part.segment, counts: part.counts }));
    return several ? [whole, ...parts] : [whole];
  });
}

/** How many rows of segments the server left out. */
export function leftOut(capacity: Capacity): number {
  return capacity.types.reduce((sum, each) => sum + each.left_out, 0);
}
