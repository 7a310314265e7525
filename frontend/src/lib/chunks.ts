/* Parts of the bundle that are loaded on the way. A network that is away for a second costs a
   moment and not the page: an import is tried again, and all parts are fetched once the page rests. */

const WAITS_MS = [200, 500, 1_000, 2_000, 4_000];

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** `load`, tried again after each of `waitsMs`; the last failure is thrown. */
export async function retried<T>(load: () => Promise<T>, waitsMs: readonly number[] = WAITS_MS): Promise<T> {
  for (const waitMs of waitsMs) {
    try {
      return await load();
    } catch {
      await sleep(waitMs);
    }
  }
  return load();
}

/** Fetches every part, one after the other, whenever the browser has nothing else to do. */
export function whenIdle(loads: readonly (() => Promise<unknown>)[]): void {
  const idle = window.requestIdleCallback ?? ((run: () => void) => setTimeout(run, 500));
  const next = (at: number): void => {
    const load = loads[at];
    if (load) idle(() => void retried(load).catch(() => undefined).finally(() => next(at + 1)));
  };
  next(0);
}

/** What browsers say when a part of the bundle could not be had. */
export function isMissingChunk(error: unknown): boolean {
  return error instanceof Error && /dynamically imported module|module script failed|Unable to preload|error loading dynamically/i.test(error.message);
}
