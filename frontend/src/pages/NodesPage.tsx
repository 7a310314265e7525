/* All nodes: state, link, devices, what they run. */
import { useQuery } from "@tanstack/react-query";
import { type ReactElement, useState } from "react";
import { Link } from "react-router";
import * as queries from "../api/queries";
import type { Node } from "../api/types";
import { bytes, count, duration, percent } from "../lib/format";
import { paths } from "../lib/paths";
import { usePatchedList } from "../live/hooks";
import { Empty, Loaded, PageHead, Skeleton } from "../ui/basics";
import { Icon } from "../ui/icons";
import { StateBadge } from "../ui/states";
import { Scroll } from "../ui/Scroll";

export function NodesPage(): ReactElement {
  const query = useQuery(queries.nodes());
  return (
    <>
      <title>Nodes - Holdfast</title>
      <PageHead title="Nodes" />
      <Loaded query={query} skeleton={<Skeleton height={280} />}>
        {(page) => <List nodes={page.items} asOfSeq={page.as_of_seq} />}
      </Loaded>
    </>
  );
}

function List({ nodes, asOfSeq }: { nodes: Node[]; asOfSeq: number }): ReactElement {
  const [text, setText] = useState("");
  const rows = usePatchedList("node", nodes, asOfSeq).filter((node) => node.name.includes(text.trim()));
  if (nodes.length === 0) return <div className="panel"><Empty icon="server" title="No nodes yet">Start an agent on a GPU node; it appears here when it says hello.</Empty></div>;
  return (
    <>
      <div className="toolbar"><input type="search" placeholder="Host name" aria-label="Search nodes" value={text} onChange={(event) => setText(event.target.value)} /><span className="muted">{count(rows.length)} nodes</span></div>
      <Scroll label="Nodes" className="panel">
        <table>
          <thead><tr><th>Node</th><th>State</th><th>Link</th><th>Devices</th><th className="num">Ranks</th><th className="num">Agent CPU</th><th className="num">Agent memory</th><th>Agent</th><th>Why</th></tr></thead>
          <tbody>{rows.map((node) => <NodeRow key={node.id} node={node} />)}</tbody>
        </table>
      </Scroll>
    </>
  );
}

function NodeRow({ node }: { node: Node }): ReactElement {
  const bad = node.devices.filter((device) => !device.present || !device.healthy).length;
  const busy = node.devices.filter((device) => device.held_by).length;
  return (
    <tr>
      <td><Link to={paths.node(node.id)}>{node.name}</Link></td>
      <td><StateBadge kind="node" state={node.state} /></td>
      <td className={`nowrap ${node.connected ? "" : "text-bad"}`}><Icon name={node.connected ? "check" : "unplug"} size={13} /> {node.connected ? "connected" : "no link"} {node.last_seen_age_s === null ? "" : <span className="muted">{duration(node.last_seen_age_s)} ago</span>}</td>
      <td className="nowrap">{busy} busy of {node.devices.length}{bad > 0 ? <span className="text-bad"> ({bad} unhealthy)</span> : null}</td>
      <td className="num">{node.ranks_running}</td>
      <td className="num">{percent(node.agent_cpu_ratio, 1)}</td>
      <td className="num">{bytes(node.agent_rss_bytes)}</td>
      <td>{node.agent_version || <span className="missing">not reported</span>}</td>
      <td className="muted">{node.state_reason}</td>
    </tr>
  );
}
