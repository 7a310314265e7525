/* A shared one-second tick for ages and relative times: one timer a tab, none while hidden. While the
   reader has paused the page its clock stands still too, so that every age is of one moment. */
import { useSyncExternalStore } from "react";

const listeners = new Set<() => void>();
let now = Date.now();
let frozenMs: number | null = null;
let timer: ReturnType<typeof setInterval> | null = null;

function tell(): void {
  for (const listener of listeners) listener();
}

function tick(): void {
  if (document.hidden) return;
  now = Date.now();
  tell();
}

export function listenClock(listener: () => void): () => void {
  listeners.add(listener);
  timer ??= setInterval(tick, 1_000);
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0 && timer !== null) {
      clearInterval(timer);
      timer = null;
    }
  };
}

/** Stops the page's clock at a moment (Unix ms); null lets it run again. */
export function freezeClock(atMs: number | null): void {
  frozenMs = atMs;
  now = Date.now();
  tell();
}

/** Now, as the page shows the world, for those that are no component. */
export const clockMs = (): number => frozenMs ?? now;

/** Now, as the page shows the world: the moment it was paused, while it is. */
export function useNow(): number {
  return useSyncExternalStore(listenClock, clockMs);
}

/** Now, whatever the page shows: how old a paused or stale page is. */
export function useWallNow(): number {
  return useSyncExternalStore(listenClock, () => now);
}

const HALF_A_SECOND_MS = 500;
let aheadMs = 0;

/** What an answer's Date header says of the server's clock, in whole seconds; null: it says nothing. */
export function hearServer(date: string | null): void {
  const ms = Date.parse(date ?? "");
  if (!Number.isNaN(ms)) aheadMs = ms + HALF_A_SECOND_MS - Date.now();
}

/** A moment of this browser's clock by the server's, to a second or so: what it wrote, it wrote by that one. */
export const byServer = (ms: number): number => ms + aheadMs;
