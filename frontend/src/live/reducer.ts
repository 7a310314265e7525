/* Theory of operation. Lists and details are REST snapshots, each with `as_of_seq`. Durable
   events carry a global, gap-free `seq` and a patch: the new summary of what changed. This
   reducer keeps the newest patch of each entity; a row shown is `snapshot row + patch` where the
   patch is newer than its snapshot. Events that arrive early wait in `held`; a hole that does
   not close means something was lost: `refetch` counts up and every snapshot is read again.
   Volatile messages (ranks, steps, devices, health) only ever replace their predecessor.
   Pure: no clock, no socket, no React; the time of a message is an argument. */
import type { DeviceLive, EventItem, Health, RankLive, Step } from "../api/types";

/** Early events kept while a hole may still close, events shown in the feed, steps kept per job. */
export const HELD_LIMIT = 64;
export const FEED_LIMIT = 200;
export const STEP_LIMIT = 5_000;
const PATCH_LIMIT = 5_000;

export interface RankPush extends RankLive {
  replica: number;
  incarnation: number;
  rank: number;
}

export type ServerMessage =
  | { type: "hello"; seq: number; version?: string }
  | { type: "event"; event: EventItem }
  | { type: "resync"; seq: number }
  | { type: "ranks"; job_id: string; at: string; ranks: RankPush[] }
  | { type: "steps"; job_id: string; points: Step[] }
  | { type: "devices"; node_id: string; at: string; silent_s?: number | null; devices: DeviceLive[] }
  | { type: "health"; health: Health }
  | { type: "pong" };

/** A node as its newest push reported it; `silentS`: how long it had not been heard then, null if not reported. */
export interface NodePush {
  at: string;
  receivedMs: number;
  silentS: number | null;
  byIndex: ReadonlyMap<number, DeviceLive>;
}

export interface Patched {
  seq: number;
  patch: Record<string, unknown>;
}

export interface LiveData {
  /** Newest sequence number applied; null before the first hello or event. */
  seq: number | null;
  /** Counts up whenever snapshots must be read again. */
  refetch: number;
  held: readonly EventItem[];
  feed: readonly EventItem[];
  patches: ReadonlyMap<string, Patched>;
  ranks: ReadonlyMap<string, { at: string; receivedMs: number; byRank: ReadonlyMap<string, RankPush> }>;
  steps: ReadonlyMap<string, readonly Step[]>;
  devices: ReadonlyMap<string, NodePush>;
  health: Health | null;
  version: string | null;
}

export const EMPTY: LiveData = {
  seq: null,
  refetch: 0,
  held: [],
  feed: [],
  patches: new Map(),
  ranks: new Map(),
  steps: new Map(),
  devices: new Map(),
  health: null,
  version: null,
};

export const patchKey = (entity: string, id: string): string => `${entity}:${id}`;
export const rankKey = (replica: number, incarnation: number, rank: number): string => `${replica}/${incarnation}/${rank}`;

export function reduce(data: LiveData, message: ServerMessage, nowMs: number): LiveData {
  switch (message.type) {
    case "hello":
      return hello(data, message.seq, message.version ?? null);
    case "resync":
      return { ...data, seq: message.seq, held: [], refetch: data.refetch + 1 };
    case "event":
      return onEvent(data, message.event);
    case "ranks": {
      const byRank = new Map(message.ranks.map((rank) => [rankKey(rank.replica, rank.incarnation, rank.rank), rank]));
      return { ...data, ranks: put(data.ranks, message.job_id, { at: message.at, receivedMs: nowMs, byRank }) };
    }
    case "steps":
      return { ...data, steps: put(data.steps, message.job_id, mergeSteps(data.steps.get(message.job_id) ?? [], message.points)) };
    case "devices": {
      const byIndex = new Map(message.devices.map((device) => [device.index, device]));
      return { ...data, devices: put(data.devices, message.node_id, { at: message.at, receivedMs: nowMs, silentS: message.silent_s ?? null, byIndex }) };
    }
    case "health":
      return { ...data, health: message.health };
    case "pong":
      return data;
    default:
      return data;
  }
}

/** A hole that stayed open: take what is held, in order, and read the snapshots again. */
export function giveUpWaiting(data: LiveData): LiveData {
  if (data.held.length === 0) return data;
  let next: LiveData = { ...data, held: [], refetch: data.refetch + 1 };
  for (const event of data.held) next = apply(next, event);
  return next;
}

/** The server's position at (re)connect. It replays from our `since`; if it is behind us, its log is another one. */
function hello(data: LiveData, seq: number, version: string | null): LiveData {
  if (data.seq === null) return { ...data, seq, version };
  if (seq < data.seq) return { ...data, seq, held: [], patches: new Map(), refetch: data.refetch + 1, version };
  return { ...data, version };
}

function onEvent(data: LiveData, event: EventItem): LiveData {
  if (data.seq !== null && event.seq <= data.seq) return data;
  if (data.seq === null || event.seq === data.seq + 1) return drain(apply(data, event));
  if (data.held.some((held) => held.seq === event.seq)) return data;
  const held = [...data.held, event].sort((a, b) => a.seq - b.seq);
  const waiting = { ...data, held };
  return held.length > HELD_LIMIT ? giveUpWaiting(waiting) : waiting;
}

function drain(data: LiveData): LiveData {
  let next = data;
  while (next.held.length > 0 && next.seq !== null && next.held[0]!.seq <= next.seq + 1) {
    const [first, ...rest] = next.held;
    next = { ...next, held: rest };
    if (first!.seq === next.seq! + 1) next = apply(next, first!);
  }
  return next;
}

function apply(data: LiveData, event: EventItem): LiveData {
  const feed = [event, ...data.feed].slice(0, FEED_LIMIT);
  if (!event.patch || !event.entity) return { ...data, seq: event.seq, feed };
  const patches = put(data.patches, patchKey(event.entity, event.entity_id ?? ""), { seq: event.seq, patch: event.patch });
  /* Maps keep insertion order: the oldest patch goes first, and a dropped one is in every later snapshot. */
  if (patches.size > PATCH_LIMIT) patches.delete(patches.keys().next().value!);
  return { ...data, seq: event.seq, feed, patches };
}

function put<K, V>(map: ReadonlyMap<K, V>, key: K, value: V): Map<K, V> {
  const next = new Map(map);
  next.delete(key);
  next.set(key, value);
  return next;
}

/** Steps in (attempt, step) order, a repeat replacing its predecessor; the newest STEP_LIMIT are kept. */
export function mergeSteps(known: readonly Step[], points: readonly Step[]): readonly Step[] {
  const last = known[known.length - 1];
  const ahead = points.every((point, i) => isAfter(point, i === 0 ? last : points[i - 1]));
  if (ahead) return [...known, ...points].slice(-STEP_LIMIT);
  const byKey = new Map<string, Step>();
  for (const step of [...known, ...points]) byKey.set(`${step.attempt}/${step.step}`, step);
  return [...byKey.values()].sort((a, b) => a.attempt - b.attempt || a.step - b.step).slice(-STEP_LIMIT);
}

function isAfter(point: Step, previous: Step | undefined): boolean {
  if (!previous) return true;
  return point.attempt > previous.attempt || (point.attempt === previous.attempt && point.step > previous.step);
}

/** The row to show: the snapshot's, with the patch where that is newer. Fields a patch lacks stay. */
export function mergeEntity<T extends object>(row: T, asOfSeq: number, patched: Patched | undefined): T {
  if (!patched || patched.seq <= asOfSeq) return row;
  return { ...row, ...patched.patch };
}
