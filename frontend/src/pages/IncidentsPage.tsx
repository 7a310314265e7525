/* All incidents, newest first, by state. */
import { useInfiniteQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import { useSearchParams } from "react-router";
import * as queries from "../api/queries";
import { IncidentTable } from "../components/IncidentTable";
import { words } from "../lib/format";
import { useSetParam } from "../lib/params";
import { usePatchedList } from "../live/hooks";
import { Empty, Loaded, PageHead, Skeleton } from "../ui/basics";
import { More } from "../ui/More";
import { SearchBox } from "../ui/SearchBox";
import { STYLES } from "../ui/states";
import type { Incident } from "../api/types";

export function IncidentsPage(): ReactElement {
  const [params] = useSearchParams();
  const state = params.get("state") ?? "";
  const q = params.get("q") ?? "";
  const set = useSetParam();
  const query = useInfiniteQuery(queries.incidents(state, q));
  return (
    <>
      <title>Incidents - Holdfast</title>
      <PageHead title="Incidents" />
      <div className="toolbar">
        <SearchBox value={q} label="Search incidents" placeholder="Title, job or node" onChange={(value) => set("q", value)} />
        <div className="segments" role="group" aria-label="State">
          {["", ...Object.keys(STYLES.incident)].map((name) => (
            <button key={name} type="button" aria-pressed={state === name} onClick={() => set("state", name)}>{name === "" ? "all" : words(name)}</button>
          ))}
        </div>
      </div>
      <Loaded query={query} skeleton={<Skeleton height={280} />}>
        {(data) => {
          const { rows, total, asOfSeq } = queries.whole(data);
          return (
            <div className="panel">
              <List incidents={rows} asOfSeq={asOfSeq} filtered={state !== "" || q !== ""} />
              <More query={query} shown={rows.length} total={total} one="incident" many="incidents" />
            </div>
          );
        }}
      </Loaded>
    </>
  );
}

function List({ incidents, asOfSeq, filtered }: { incidents: Incident[]; asOfSeq: number; filtered: boolean }): ReactElement {
  const rows = usePatchedList("incident", incidents, asOfSeq);
  if (rows.length === 0) return <Empty title={filtered ? "No incident is found by this" : "No incidents"}>Every fault that is found appears here, with what was done about it.</Empty>;
  return <IncidentTable incidents={rows} />;
}
