/* React's view of the live store, and the bridge from durable events to the query cache. */
import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useSyncExternalStore } from "react";
import { keys } from "../api/queries";
import type { EventItem, Node } from "../api/types";
import { clockMs, listenClock } from "../lib/clock";
import { type Heard, nodeHeard } from "../lib/heard";
import { mergeEntity, patchKey } from "./reducer";
import { live, type LiveState } from "./store";

/** Re-renders only when the selected part changes; selectors must return existing references. */
export function useLive<T>(select: (state: LiveState) => T): T {
  return useSyncExternalStore(live.listen, () => select(live.getState()));
}

export function useTopic(topic: string | null): void {
  useEffect(() => (topic === null ? undefined : live.subscribe(topic)), [topic]);
}

/** How long a node has been silent: by its pushes where they are followed, else as it was read. Whole
    seconds once it is silent, so that a healthy fleet is not drawn again each second. */
export function useHeard(node: Pick<Node, "id" | "last_seen_age_s">, push = true): Heard {
  const encoded = useSyncExternalStore(listenHeard, () => {
    const heard = hear(node, push);
    return `${heard.hearing} ${heard.ageS === null ? "" : heard.hearing === "ok" ? heard.ageS.toFixed(1) : Math.floor(heard.ageS)}`;
  });
  const [hearing, age] = encoded.split(" ") as [Heard["hearing"], string];
  return { hearing, ageS: age === "" ? null : Number(age) };
}

type Known = Pick<Node, "id" | "last_seen_age_s">;

function hear(node: Known, push: boolean): Heard {
  const { data, link } = live.getState();
  const linked = link === "live" || link === "paused";
  const pushed = push ? data.devices.get(node.id) : undefined;
  if (!pushed || pushed.silentS === null) return nodeHeard(node.last_seen_age_s, 0, linked);
  return nodeHeard(pushed.silentS, Math.max(0, (clockMs() - pushed.receivedMs) / 1000), linked);
}

/** How many of these nodes are not heard though they are connected; counted once a second. */
export function useSilentCount(nodes: readonly Node[], push: boolean): number {
  return useSyncExternalStore(listenClock, () => nodes.filter((node) => node.connected && hear(node, push).hearing === "bad").length);
}

function listenHeard(listener: () => void): () => void {
  const ends = [live.listen(listener), listenClock(listener)];
  return () => ends.forEach((end) => end());
}

/** One entity with the newest patch applied. */
export function usePatched<T extends { id: string }>(entity: string, row: T | undefined, asOfSeq: number): T | undefined {
  const patched = useLive((state) => (row ? state.data.patches.get(patchKey(entity, row.id)) : undefined));
  return useMemo(() => (row ? mergeEntity(row, asOfSeq, patched) : undefined), [row, asOfSeq, patched]);
}

/** Rows with the newest patches applied, in the order given. */
export function usePatchedList<T extends { id: string }>(entity: string, rows: readonly T[], asOfSeq: number): T[] {
  const patches = useLive((state) => state.data.patches);
  return useMemo(
    () => rows.map((row) => mergeEntity(row, asOfSeq, patches.get(patchKey(entity, row.id)))),
    [entity, rows, asOfSeq, patches],
  );
}

/** Reads again what an act of this page has changed; a paused page stays as it is until it goes on. */
export function useRefresh(): (key: readonly unknown[]) => void {
  const client = useQueryClient();
  return (key) => {
    if (!live.paused) void client.invalidateQueries({ queryKey: key });
  };
}

const DEBOUNCE_MS = 600;

/** Which snapshots an event makes old. Patches show the change at once; these reads bring the rest. */
export function affectedKeys(event: EventItem): (readonly unknown[])[] {
  const touched: (readonly unknown[])[] = [keys.overview];
  if (event.job_id) touched.push(keys.job(event.job_id));
  if (event.job_id && event.entity === "replica") touched.push(keys.incarnations(event.job_id));
  if (event.node_id) touched.push(keys.node(event.node_id));
  if (event.entity === "incident") touched.push(keys.incidents, keys.incident(event.entity_id ?? ""));
  if (event.entity === "decision" || event.entity === "command" || event.entity === "signal") touched.push(["incident"]);
  if (event.entity === "decision") touched.push(keys.decision(event.entity_id ?? ""));
  if (event.entity === "command") touched.push(["decision"]);
  if (event.entity === "job" || event.entity === "request") touched.push(keys.queue, keys.capacity);
  if (event.entity === "job") touched.push(keys.jobs);
  if (event.entity === "node" || event.entity === "device" || event.entity === "rank") touched.push(keys.nodes);
  return touched;
}

/** Mounted once: refetches what events touched (debounced), and everything on a gap or resync. */
export function useLiveInvalidation(): void {
  const client = useQueryClient();
  const refetch = useLive((state) => state.data.refetch);
  const newest = useLive((state) => state.data.feed[0]);
  const done = useRef(0);
  const pending = useRef(new Map<string, readonly unknown[]>());
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);

  useEffect(() => {
    if (refetch > 0) void client.invalidateQueries({ predicate: (query) => query.queryKey[0] !== "me" });
  }, [client, refetch]);

  /* Snapshots read before the socket was up are older than its first number: nothing would ever patch them. */
  const started = useLive((state) => state.data.seq !== null);
  useEffect(() => {
    const seq = live.getState().data.seq;
    if (started && seq !== null) void client.invalidateQueries({ predicate: (query) => asOfSeq(query.state.data) < seq });
  }, [client, started]);

  /* What failed while the control plane was away is asked for as soon as it is heard again. */
  const linked = useLive((state) => state.link === "live");
  useEffect(() => {
    if (linked) void client.refetchQueries({ type: "active", predicate: (query) => query.state.status === "error" });
  }, [client, linked]);

  /* What was held while the page was paused is caught up with at once. */
  const paused = useLive((state) => state.link === "paused");
  const wasPaused = useRef(false);
  useEffect(() => {
    if (wasPaused.current && !paused) void client.invalidateQueries({ predicate: (query) => query.queryKey[0] !== "me" });
    wasPaused.current = paused;
  }, [client, paused]);

  useEffect(() => {
    for (const event of live.getState().data.feed) {
      if (event.seq <= done.current) break;
      for (const key of affectedKeys(event)) pending.current.set(JSON.stringify(key), key);
    }
    if (newest) done.current = newest.seq;
    if (pending.current.size > 0 && timer.current === null) {
      timer.current = setTimeout(() => {
        timer.current = null;
        flushPending(client, pending.current);
      }, DEBOUNCE_MS);
    }
  }, [client, newest]);
}

/** The sequence number a snapshot is as of; Infinity where it has none. */
export function asOfSeq(data: unknown): number {
  const snapshot = data as { as_of_seq?: number; pages?: { as_of_seq?: number }[] } | undefined;
  return snapshot?.as_of_seq ?? snapshot?.pages?.[0]?.as_of_seq ?? Infinity;
}

/** Lists of several pages are left to their poll: patches show what changed, and thousands of rows
    must not be read again for every event. */
function flushPending(client: QueryClient, pending: Map<string, readonly unknown[]>): void {
  if (!live.paused) {
    for (const key of pending.values()) void client.invalidateQueries({ queryKey: key, predicate: (query) => pagesOf(query.state.data) < 2 });
  }
  pending.clear();
}

function pagesOf(data: unknown): number {
  return (data as { pages?: unknown[] } | undefined)?.pages?.length ?? 0;
}
