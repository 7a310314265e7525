/* All nodes: state, link, devices, what they run. Searched by the server, page by page. */
import { useInfiniteQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import { Link, useSearchParams } from "react-router";
import * as queries from "../api/queries";
import type { Node } from "../api/types";
import { AddNodes } from "../components/AddNodes";
import { Heard, RanksOf, silentNode } from "../components/Heard";
import { bytes, percent } from "../lib/format";
import { paths } from "../lib/paths";
import { useHeard, usePatchedList, useTopic } from "../live/hooks";
import { Empty, Loaded, PageHead, Skeleton } from "../ui/basics";
import { More, shownOf } from "../ui/More";
import { Scroll } from "../ui/Scroll";
import { SearchBox } from "../ui/SearchBox";
import { StateBadge } from "../ui/states";

/** So many rows are followed each second; the others are as old as the list was read. */
const LIVE_ROWS = 64;

export function NodesPage(): ReactElement {
  const [params, setParams] = useSearchParams();
  const q = params.get("q") ?? "";
  const query = useInfiniteQuery(queries.nodes(q));
  const { rows, total, asOfSeq } = queries.whole(query.data);
  return (
    <>
      <title>Nodes - Holdfast</title>
      <PageHead title="Nodes" actions={<AddNodes />} />
      <div className="toolbar">
        <SearchBox value={q} label="Search nodes" placeholder="Part of the name" onChange={(value) => setParams(value === "" ? {} : { q: value }, { replace: true })} />
        <span className="muted" role="status">{query.data ? shownOf(rows.length, total, query.hasNextPage, "node", "nodes") : ""}</span>
      </div>
      <Loaded query={query} skeleton={<Skeleton height={280} />}>
        {() => (
          <div className="panel">
            {rows.length > 0 ? <List nodes={rows} asOfSeq={asOfSeq} /> : q === "" ? (
              <Empty icon="server" title="No nodes yet">Start an agent on a GPU node; it appears here when it says hello. The <Link to={paths.overview()}>overview</Link> says how.</Empty>
            ) : (
              <Empty icon="search" title={`No node has "${q}" in its name`}><button type="button" className="button" onClick={() => setParams({}, { replace: true })}>Show all nodes</button></Empty>
            )}
            <More query={query} shown={rows.length} total={total} one="node" many="nodes" />
          </div>
        )}
      </Loaded>
    </>
  );
}

function List({ nodes, asOfSeq }: { nodes: Node[]; asOfSeq: number }): ReactElement {
  const rows = usePatchedList("node", nodes, asOfSeq);
  return (
    <Scroll label="Nodes">
      <table>
        <thead><tr><th>Node</th><th>State</th><th>Link</th><th>Devices</th><th className="num">Ranks</th><th className="num">Agent CPU</th><th className="num">Agent memory</th><th>Agent</th><th>Why</th></tr></thead>
        <tbody>{rows.map((node, i) => <NodeRow key={node.id} node={node} push={i < LIVE_ROWS} />)}</tbody>
      </table>
    </Scroll>
  );
}

function NodeRow({ node, push }: { node: Node; push: boolean }): ReactElement {
  const bad = node.devices.filter((device) => !device.present || !device.healthy).length;
  const busy = node.devices.filter((device) => device.held_by).length;
  useTopic(push ? `node:${node.id}` : null);
  const heard = useHeard(node, push);
  return (
    <tr className={silentNode(node, heard) ? "stale-row" : undefined}>
      <td><Link className="cell-name" to={paths.node(node.id)}>{node.name}</Link></td>
      <td><StateBadge kind="node" state={node.state} /></td>
      <td className="nowrap"><Heard node={node} heard={heard} /> <RanksOf silent={node.not_heard} /></td>
      <td className="nowrap">{busy} busy of {node.devices.length}{bad > 0 ? <span className="text-bad"> ({bad} unhealthy)</span> : null}</td>
      <td className="num">{node.ranks_running}</td>
      <td className="num">{percent(node.agent_cpu_ratio, 1)}</td>
      <td className="num">{bytes(node.agent_rss_bytes)}</td>
      <td>{node.agent_version || <span className="missing">not reported</span>}</td>
      <td className={node.state_reason ? "muted words" : "muted"}>{node.state_reason}</td>
    </tr>
  );
}
