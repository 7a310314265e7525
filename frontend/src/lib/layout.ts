/* A layout in words and ranks. Only what a layout has is shown: VP, EP and the data parallelism
   inside a replica are named where they are above 1. */
import type { Layout } from "../api/types";

export const ranksPerReplica = (layout: Layout): number => layout.tp * layout.pp * layout.cp * layout.replica_dp;

/** Above so many ranks a job is shown as a picture, and nothing of its ranks is read one by one. */
const TABLE_RANKS = 256;

export const isLarge = ({ layout }: { layout: Layout | null }): boolean => layout !== null && ranksPerReplica(layout) * Number(layout.dp) > TABLE_RANKS;

/** [name, size] in the order of Megatron's rank grid, without the replicas. */
export function layoutParts(layout: Layout): [string, number][] {
  const parts: [string, number][] = [["TP", layout.tp], ["PP", layout.pp], ["CP", layout.cp]];
  const others: [string, number][] = [["VP", layout.vp], ["EP", layout.ep], ["DP in a replica", layout.replica_dp]];
  return [...parts, ...others.filter(([, size]) => size > 1)];
}
