/* Every node of the fleet. The map and the pickers show all there are, so the pages are read to
   their end, one after the other; the table of nodes pages instead. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import * as queries from "./queries";
import type { Node } from "./types";

export interface Fleet {
  /** What has been read so far; undefined before the first page. */
  nodes: Node[] | undefined;
  /** How many there are; null before the server has said. */
  total: number | null;
  asOfSeq: number;
  /** When the newest page was read (browser clock, ms). */
  readMs: number;
  complete: boolean;
  error: unknown;
  refetch: () => unknown;
}

export function useFleet(enabled = true): Fleet {
  const query = useInfiniteQuery({ ...queries.fleet(), enabled });
  const { hasNextPage, isFetching, isFetchNextPageError, fetchNextPage } = query;
  useEffect(() => {
    if (enabled && hasNextPage && !isFetching && !isFetchNextPageError) void fetchNextPage();
  }, [enabled, hasNextPage, isFetching, isFetchNextPageError, fetchNextPage]);
  const { rows, total, asOfSeq } = queries.whole(query.data);
  return { nodes: query.data ? rows : undefined, total, asOfSeq, readMs: query.dataUpdatedAt, complete: !hasNextPage, error: query.error, refetch: query.refetch };
}
