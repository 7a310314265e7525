/* A text that is being written, kept in this browser until it is sent: leaving the page, a session
   that ends and a reload lose nothing. */

const NAME = (what: string): string => `holdfast.draft.${what}`;

/** What was kept; null when there is nothing, or the browser keeps nothing. */
export function draftOf(what: string): string | null {
  try {
    return localStorage.getItem(NAME(what));
  } catch {
    return null;
  }
}

/** Keeps `text`; null forgets it. */
export function keepDraft(what: string, text: string | null): void {
  try {
    if (text === null) localStorage.removeItem(NAME(what));
    else localStorage.setItem(NAME(what), text);
  } catch {
    /* Storage is blocked or full: the text lasts as long as the page. */
  }
}

/** The project that a spec names, as far as that can be seen without reading all of it; null: none that is seen. */
export function projectOf(spec: string): string | null {
  const metadata = /(^|[\n{,])\s*"?metadata"?\s*:(.*?)(\n["\w]|$(?![\s\S]))/s.exec(spec)?.[2] ?? "";
  return /[\s{,]"?project"?\s*:\s*["']?([\w.-]+)/.exec(metadata)?.[1] ?? null;
}
