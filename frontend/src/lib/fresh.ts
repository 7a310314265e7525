/* Is the server's page newer than this one? Names in the bundle carry their content's hash, so the
   entry script of the document that the server gives now tells. */

let newer = false;
const listeners = new Set<() => void>();
const RELOADED = "holdfast.reloaded";
/** A page that cannot load one of its parts is loaded anew, but not twice in this time. */
const RELOAD_GAP_MS = 60_000;

/** Path of the entry script in a document's text; null where it has none. */
export function entryOf(html: string): string | null {
  return /<script type="module"[^>]*\ssrc="([^"]+)"/.exec(html)?.[1] ?? null;
}

const ownEntry = (): string | null => document.querySelector("script[type=module][src]")?.getAttribute("src") ?? null;

/** Asks the server for its document, and remembers whether its bundle is another one. */
export async function lookForNewer(): Promise<void> {
  try {
    const response = await fetch("/", { cache: "no-store", credentials: "same-origin" });
    const offered = response.ok ? entryOf(await response.text()) : null;
    const own = ownEntry();
    newer = offered !== null && own !== null && new URL(offered, location.href).pathname !== new URL(own, location.href).pathname;
  } catch {
    return; /* It is away again: the next greeting asks once more. */
  }
  for (const listener of listeners) listener();
}

export const isNewer = (): boolean => newer;

export function listenFresh(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Loads the page anew, at most once in a while: a page that fails again must say so. */
export function reloadOnce(nowMs: number): boolean {
  try {
    if (nowMs - Number(sessionStorage.getItem(RELOADED) ?? 0) < RELOAD_GAP_MS) return false;
    sessionStorage.setItem(RELOADED, String(nowMs));
  } catch {
    return false; /* Without storage nothing would stop a page that reloads for ever. */
  }
  location.reload();
  return true;
}
