/* What a scheduler gives, in words. */
import type { Intent, JobEngine, Pool } from "../api/types";

export const KINDS: Record<string, { text: string; meaning: string }> = {
  in_use: { text: "in use", meaning: "Ranks are on its node" },
  idle: { text: "hot spare", meaning: "Its node takes work, and nothing runs on it" },
  cold: { text: "cold spare", meaning: "It waits in Slurm's queue" },
  held: { text: "held", meaning: "It waits until somebody releases it: scontrol release" },
  other: { text: "no spare", meaning: "It starts or ends, or its node takes no work" },
};

export function countsText(pool: Pick<Pool, "in_use" | "idle" | "cold" | "held" | "other">): string {
  const parts = [`${pool.in_use} in use`, `${pool.idle} hot`, `${pool.cold} cold`, `${pool.held} held`];
  return [...parts, ...(pool.other > 0 ? [`${pool.other} others`] : [])].join(", ");
}

export function intentText(row: Pick<Intent, "kind" | "node_name" | "pool" | "size">): string {
  if (row.kind === "resize") return `${row.size} pilots of pool ${row.pool} at a time`;
  return row.kind === "mark_bad" ? `drain ${row.node_name}` : `undo the drain of ${row.node_name}`;
}

export function poolsText(engine: Pick<JobEngine, "nodes" | "lent" | "pools">): string {
  const pools = `${engine.pools.length === 1 ? "pool" : "pools"} ${engine.pools.join(", ")}`;
  const which = engine.lent === engine.nodes ? (engine.nodes === 1 ? "Its node comes" : `Its ${engine.nodes} nodes come`) : `${engine.lent} of its ${engine.nodes} nodes ${engine.lent === 1 ? "comes" : "come"}`;
  return `${which} from Slurm, by pilots of ${pools}.`;
}
