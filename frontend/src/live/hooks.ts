/* React's view of the live store, and the bridge from durable events to the query cache. */
import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useSyncExternalStore } from "react";
import { keys } from "../api/queries";
import type { EventItem } from "../api/types";
import { mergeEntity, patchKey } from "./reducer";
import { live, type LiveState } from "./store";

/** Re-renders only when the selected part changes; selectors must return existing references. */
export function useLive<T>(select: (state: LiveState) => T): T {
  return useSyncExternalStore(live.listen, () => select(live.getState()));
}

export function useTopic(topic: string | null): void {
  useEffect(() => (topic === null ? undefined : live.subscribe(topic)), [topic]);
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

const DEBOUNCE_MS = 600;

/** Which snapshots an event makes old. Patches show the change at once; these reads bring the rest. */
export function affectedKeys(event: EventItem): (readonly unknown[])[] {
  const touched: (readonly unknown[])[] = [keys.overview];
  if (event.job_id) touched.push(keys.job(event.job_id));
  if (event.node_id) touched.push(keys.node(event.node_id));
  if (event.entity === "incident") touched.push(keys.incidents, keys.incident(event.entity_id));
  if (event.entity === "decision" || event.entity === "command" || event.entity === "signal") touched.push(["incident"]);
  if (event.entity === "decision") touched.push(keys.decision(event.entity_id));
  if (event.entity === "command") touched.push(["decision"]);
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

function flushPending(client: QueryClient, pending: Map<string, readonly unknown[]>): void {
  for (const key of pending.values()) void client.invalidateQueries({ queryKey: key });
  pending.clear();
}
