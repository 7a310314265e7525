/* How long a node or a rank has been silent, and whose silence it is. When this page itself hears
   nothing, an age says nothing about the machine: it is shown grey, never red. Pure. */
import type { NotHeard } from "../api/types";

/** A heartbeat is expected each second; beyond these ages the cell says so. */
export const LATE_S = 1.5;
export const SILENT_S = 2;
/** Agents speak each second. A node that was not heard for longer is marked. */
export const NODE_SILENT_S = 5;
/** Readings are pushed each second; a longer pause is the link's, not the machine's. */
const PUSH_S = 3;
/** The server's clock is known to about a second (`byServer`). */
const CLOCK_S = 2;

/** What its silence means to the ranks on a node, in words. */
export const ranksOf = (silent: Pick<NotHeard, "commits" | "left_out">): string =>
  silent.left_out ? "left out for now" : silent.commits ? "still commits" : "no step since";

/** Seconds since a node's last word; `nowMs` by the server's clock, as its `since` is. */
export function silentFor(silent: Pick<NotHeard, "since">, nowMs: number): number {
  const seconds = Math.floor((nowMs - Date.parse(silent.since)) / 1000);
  return seconds < 0 && seconds >= -CLOCK_S ? 0 : seconds;
}

export type Hearing = "ok" | "warn" | "bad" | "stale";

export interface Heard {
  ageS: number | null;
  hearing: Hearing;
}

/** `silentS`: as the newest push reported it; `sinceS`: how old that push is; `linked`: this page hears the server;
 *  `starting`: the rank imports and builds, and sends no heartbeat meanwhile. */
export function rankHeard(silentS: number | null, sinceS: number, linked: boolean, starting = false): Heard {
  if (silentS === null) return { ageS: null, hearing: "stale" };
  const late = sinceS > PUSH_S;
  const ageS = silentS + (late ? sinceS : 0);
  if (!linked || late) return { ageS, hearing: "stale" };
  if (starting) return { ageS, hearing: "ok" };
  return { ageS, hearing: silentS > SILENT_S ? "bad" : silentS > LATE_S ? "warn" : "ok" };
}

/** As `rankHeard`, for a node: its readings come by push, or else with the list. */
export function nodeHeard(silentS: number | null, sinceS: number, linked: boolean): Heard {
  if (silentS === null) return { ageS: null, hearing: "stale" };
  const late = sinceS > PUSH_S;
  if (silentS > NODE_SILENT_S) return { ageS: silentS + (linked ? sinceS : 0), hearing: linked ? "bad" : "stale" };
  return { ageS: silentS, hearing: linked && !late ? "ok" : "stale" };
}
