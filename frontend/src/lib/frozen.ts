/* The moment at which a page is frozen: `?at=` of its address, so that a link to it shows the same to everybody. What the page
   then shows is what is kept of that moment: the newest summary of each object until then. Pure, but for `frozenAt`. */
import type { EventItem, Replica, Step } from "../api/types";
import { byServer } from "./clock";
import type { Lived } from "./lifeline";

/** ISO-8601 with its zone, as the server writes times. A plus sign in an address arrives as a space. */
const INSTANT = /^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+ -]\d\d:\d\d)$/;
const CLOCKS_DIFFER_MS = 5_000;

export type Frozen = { iso: string; ms: number; wrong: "" } | { iso: string; ms: null; wrong: string };

/** What `?at=` says; null where the page is live. `nowMs`: by the server's clock. */
export function frozenOf(text: string | null, nowMs: number): Frozen | null {
  if (text === null || text === "") return null;
  const iso = text.replace(" ", "+");
  const ms = INSTANT.test(text) ? Date.parse(iso) : Number.NaN;
  if (Number.isNaN(ms)) return { iso: text, ms: null, wrong: `"${text}" is no instant: write it like 2026-11-29T14:00:00Z` };
  if (ms > nowMs + CLOCKS_DIFFER_MS) return { iso, ms: null, wrong: `${iso} lies in the future` };
  return { iso, ms, wrong: "" };
}

/** The instant in the address of this page, for links that carry it; null where the page is live. */
export const frozenAt = (): string | null => frozenOf(new URLSearchParams(location.search).get("at"), byServer(Date.now()))?.iso ?? null;

/** One read of that time. `value` is undefined while it is being read, where it could not be read, and, once `read`, where nothing
    is kept: three different things. */
export interface Reading<T> {
  value: T | undefined;
  read: boolean;
  error: unknown;
  refetch: () => unknown;
}

/** What a query read, as that time's value. */
export function readingOf<A, T>(query: { data: A | undefined; error: unknown; refetch: () => unknown }, value: (data: A) => T | undefined): Reading<T> {
  const { data, error, refetch } = query;
  return { value: data === undefined ? undefined : value(data), read: data !== undefined, error: data === undefined ? error : null, refetch };
}

/** Whole seconds, as a link has it. */
export const instantOf = (ms: number): string => new Date(ms).toISOString().replace(/\.\d+Z$/, "Z");

/** The newest summary of each object among these events, in the order in which they were first named. */
export function latest<T>(events: readonly EventItem[]): T[] {
  const found = new Map<string, T>();
  for (const event of [...events].sort((a, b) => a.seq - b.seq)) if (event.entity_id !== null && event.patch) found.set(event.entity_id, event.patch as T);
  return [...found.values()];
}

export const stepsUntil = (steps: readonly Step[], ms: number): Step[] => steps.filter((step) => Date.parse(step.at) <= ms);

const until = <T extends string | null>(at: T, ms: number): T | null => (at !== null && Date.parse(at) <= ms ? at : null);

/** Incarnations as they stood at a moment; those that began later are left out, and a state that began later stands for none.
    `states`: by id, as the newest summaries until then say. */
export function replicasAt(replicas: readonly Replica[], states: ReadonlyMap<string, Pick<Replica, "state" | "state_since">>, ms: number): Lived[] {
  const born = replicas.filter((replica) => Date.parse(replica.created_at) <= ms);
  const newest = new Map<number, Replica>();
  for (const replica of [...born].sort((a, b) => a.attempt - b.attempt || a.incarnation - b.incarnation)) newest.set(replica.index, replica);
  return born.map((replica) => {
    const ranks = replica.ranks.map((rank) => ({ ...rank, started_at: until(rank.started_at, ms), joined_at: until(rank.joined_at, ms) }));
    const was = Date.parse(replica.state_since) <= ms ? replica : (states.get(replica.id) ?? { state: "" as const, state_since: new Date(ms).toISOString() });
    return { ...replica, ranks, state: was.state, state_since: was.state_since, current: newest.get(replica.index) === replica };
  });
}
