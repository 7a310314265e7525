/* Who did what, when and why; how much of it is known to be whole. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import { useSearchParams } from "react-router";
import { useSetParam } from "../lib/params";
import { addressOf } from "../api/client";
import * as queries from "../api/queries";
import type { AuditEntry } from "../api/types";
import { chainOf, filterOf, FILTERS } from "../lib/audit";
import { Empty, Loaded, Skeleton, Time } from "../ui/basics";
import { Icon } from "../ui/icons";
import { More, shownOf } from "../ui/More";
import { Scroll } from "../ui/Scroll";
import { SearchBox } from "../ui/SearchBox";

export function AuditLog(): ReactElement {
  const [params, setParams] = useSearchParams();
  const filter = filterOf(params);
  const query = useInfiniteQuery(queries.audit(filter));
  const { rows } = queries.whole(query.data);
  const set = useSetParam();
  const clear = (): void => setParams({ tab: "audit" }, { replace: true });
  const filtered = Object.keys(filter).length > 0;
  return (
    <div className="stack padded">
      <ChainState />
      <div className="audit-filter">
        {FILTERS.map(({ name, label, placeholder }) => (
          <label key={name} className="field"><span>{label}</span><SearchBox value={params.get(name) ?? ""} label={label} placeholder={placeholder} onChange={(value) => set(name, value)} /></label>
        ))}
        {([["since", "From"], ["until", "Until"]] as const).map(([name, label]) => (
          <label key={name} className="field"><span>{label}</span><input type="datetime-local" value={params.get(name) ?? ""} onChange={(event) => set(name, event.target.value)} /></label>
        ))}
        {filtered ? <button type="button" className="button" onClick={clear}>Show all</button> : null}
        <a className="button" href={addressOf("/audit/export", filter)} download title="Every sealed row that the filter lets through, as JSON lines with their digests">Export</a>
        <span className="muted" role="status">{query.data ? shownOf(rows.length, null, query.hasNextPage, "row", "rows") : ""}</span>
      </div>
      <Loaded query={query} skeleton={<Skeleton height={240} />}>
        {() => rows.length === 0 ? (
          <Empty icon={filtered ? "search" : "check"} title={filtered ? "No row is like that" : "Nothing was done yet"}>{filtered ? "Account and object are compared whole; an act also by its beginning, with * at its end." : undefined}</Empty>
        ) : (
          <>
            <Scroll label="Audit log">
              <table>
                <thead><tr><th className="num">Row</th><th>Time</th><th>Account</th><th>Act</th><th>Object</th><th>Reason</th><th>From</th><th>Details</th></tr></thead>
                <tbody>{rows.map((row) => <Row key={row.id} row={row} />)}</tbody>
              </table>
            </Scroll>
            <More query={query} shown={rows.length} total={null} one="row" many="rows" />
          </>
        )}
      </Loaded>
    </div>
  );
}

function ChainState(): ReactElement | null {
  const state = useQuery(queries.auditState()).data;
  if (!state) return null;
  const chain = chainOf(state);
  return (
    <div className={`notice tone-${chain.tone}`} role="status">
      <Icon name={chain.tone === "ok" ? "shield" : "alert"} size={15} />
      <span>{chain.text}{state.at ? <> <Time at={state.at} /></> : null}{chain.more}{state.unsealed > 0 ? ` ${state.unsealed} ${state.unsealed === 1 ? "row waits" : "rows wait"} to be sealed.` : ""}</span>
    </div>
  );
}

function Row({ row }: { row: AuditEntry }): ReactElement {
  const parts = Object.entries({ before: row.before, after: row.after, data: row.data, decision: row.decision_id, request: row.request_id })
    .filter(([, value]) => value !== null && value !== "" && JSON.stringify(value) !== "{}");
  return (
    <tr>
      <td className="num">{row.seq ?? <span className="missing">not sealed</span>}</td>
      <td><Time at={row.at} /></td>
      <td><span className="cell-name" title={row.actor}>{row.who}</span></td>
      <td className="nowrap"><code>{row.action}</code></td>
      <td><span className="cell-name">{row.subject}</span></td>
      <td className="words">{row.reason}</td>
      <td className="nowrap">{row.origin}</td>
      <td>{parts.length === 0 ? null : <details className="fold"><summary>show</summary><pre className="code">{JSON.stringify(Object.fromEntries(parts), null, 2)}</pre></details>}</td>
    </tr>
  );
}
