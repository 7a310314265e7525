/* The end of a list that came in pages: how much of it is shown, and the rest on request. */
import type { ReactElement } from "react";
import { count } from "../lib/format";

interface Paged {
  hasNextPage: boolean;
  isFetchingNextPage: boolean;
  isFetchNextPageError: boolean;
  fetchNextPage: () => unknown;
}

/** "125 nodes", "200 of 431 incidents", "200 or more jobs" where the whole is not counted. */
export function shownOf(shown: number, total: number | null, more: boolean, one: string, many: string): string {
  if (!more) return `${count(shown)} ${shown === 1 ? one : many}`;
  return total === null ? `${count(shown)} or more ${many}` : `${count(shown)} of ${count(total)} ${many}`;
}

export function More({ query, shown, total, one, many }: { query: Paged; shown: number; total: number | null; one: string; many: string }): ReactElement | null {
  if (!query.hasNextPage) return null;
  return (
    <div className="more">
      <span>Showing {shownOf(shown, total, true, one, many)}.</span>
      <button type="button" className="button" disabled={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
        {query.isFetchingNextPage ? "Loading..." : "Show more"}
      </button>
      {query.isFetchNextPageError ? <span className="text-bad">The server did not answer; try again.</span> : null}
    </div>
  );
}
