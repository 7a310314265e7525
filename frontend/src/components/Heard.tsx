/* Whether a node is heard, in words: connected, silent although connected, or without a link. */
import type { ReactElement } from "react";
import { Link } from "react-router";
import type { NotHeard } from "../api/types";
import type { Node } from "../api/types";
import { duration } from "../lib/format";
import { byServer, useNow } from "../lib/clock";
import { type Heard as Hearing, ranksOf, silentFor } from "../lib/heard";
import { paths } from "../lib/paths";
import { useHeard } from "../live/hooks";
import { Icon } from "../ui/icons";

/** What is shown of it is the last that came, not how it is now. */
export const silentNode = (node: Pick<Node, "connected">, heard: Hearing): boolean => !node.connected || heard.hearing === "bad";

export function Heard({ node, heard }: { node: Pick<Node, "connected">; heard: Hearing }): ReactElement {
  const age = heard.ageS === null ? "" : `${duration(heard.ageS)} ago`;
  if (!node.connected) return <span className="text-bad"><Icon name="unplug" size={13} /> no link {age ? <span className="muted">heard {age}</span> : null}</span>;
  if (heard.hearing === "bad") return <span className="text-bad" title="Its agent is connected but silent; the values shown are the last it reported"><Icon name="unplug" size={13} /> not heard {duration(heard.ageS)}</span>;
  if (heard.hearing === "stale") return <span className="muted" title="This page has received no newer readings of this node"><Icon name="question" size={13} /> {age ? `last heard ${age}` : "connected"}</span>;
  return <span><Icon name="check" size={13} /> connected {age ? <span className="muted">heard {age}</span> : null}</span>;
}

/** A job's silent nodes in one line of a list: the first by name, and how many more. */
export function SilentOf({ silent }: { silent: NotHeard[] }): ReactElement | null {
  const now = byServer(useNow());
  const first = silent[0];
  if (!first) return null;
  const all = silent.map((item) => `${item.node_name} is not heard for ${duration(silentFor(item, now))}: ${ranksOf(item)}`).join("; ");
  return (
    <span className="text-bad" title={all}>
      <Icon name="unplug" size={12} /> {first.node_name} not heard {duration(silentFor(first, now))}, {ranksOf(first)}{silent.length > 1 ? `, and ${silent.length - 1} more` : ""}
    </span>
  );
}

/** What its silence means to the jobs on a node, for a list of nodes. */
export function RanksOf({ silent }: { silent: NotHeard[] }): ReactElement | null {
  if (silent.length === 0) return null;
  return <span className="muted">{[...new Set(silent.map(ranksOf))].join(", ")}</span>;
}

/** Of the nodes that a job runs on, each that is not heard, in a line of its own. */
export function SilentNodes({ nodes }: { nodes: { id: string; name: string }[] }): ReactElement {
  return <>{nodes.map((node) => <SilentLine key={node.id} node={node} />)}</>;
}

function SilentLine({ node }: { node: { id: string; name: string } }): ReactElement | null {
  const heard = useHeard({ id: node.id, last_seen_age_s: null });
  if (heard.hearing !== "bad") return null;
  return (
    <div className="notice tone-warn" role="status">
      <Icon name="unplug" size={15} />
      <span><Link to={paths.node(node.id)}>{node.name}</Link> is not heard for {duration(heard.ageS)}. Its ranks may still be training: steps committed below count as always.</span>
    </div>
  );
}
