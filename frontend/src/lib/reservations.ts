/* Reserved nodes in words. */
import type { Reservation } from "../api/types";

/** What follows the nodes that are listed. */
export function nodesOf(row: Pick<Reservation, "nodes" | "node_count">): string {
  const more = row.node_count - row.nodes.length;
  return more > 0 ? ` and ${more} more` : "";
}

/** How a sentence about it begins; a project that is not seen has no name. */
export function reservedText(row: Pick<Reservation, "project" | "starts_at" | "who">, now: Date): string {
  const runs = new Date(row.starts_at).getTime() <= now.getTime();
  const whose = row.who === "" ? row.project : `project ${row.project}`;
  return `${runs ? "Is" : "Will be"} reserved for ${whose} from`;
}
