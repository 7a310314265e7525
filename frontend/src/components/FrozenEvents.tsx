/* What had happened by then to a job or on a node, the newest first. */
import { useInfiniteQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import * as queries from "../api/queries";
import { Empty, Loaded } from "../ui/basics";
import { More } from "../ui/More";
import { EventTable } from "./EventTable";

/** `at`: the moment, as an ISO instant. */
export function FrozenEvents({ of, at }: { of: Parameters<typeof queries.eventsUntil>[0]; at: string }): ReactElement {
  const query = useInfiniteQuery(queries.eventsUntil(of, at));
  const rows = query.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <Loaded query={query}>
      {() => (
        <>
          {rows.length === 0 ? <Empty icon="list" title="No event is kept for this time" /> : <EventTable events={rows} freezes />}
          <More query={query} shown={rows.length} total={null} one="event" many="events" />
        </>
      )}
    </Loaded>
  );
}
