/* Who the nodes are: enrolment, key and version of each agent, and the tokens with which more may enrol. */
import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { type ReactElement, useState } from "react";
import { Link } from "react-router";
import { post } from "../api/client";
import * as queries from "../api/queries";
import type { JoinToken, Node } from "../api/types";
import { useNow } from "../lib/clock";
import { count } from "../lib/format";
import { paths } from "../lib/paths";
import { AddNodes } from "./AddNodes";
import { ActButton } from "../ui/ActButton";
import { Empty, Id, Loaded, Skeleton, Time } from "../ui/basics";
import { ConfirmDialog } from "../ui/dialog";
import { More } from "../ui/More";
import { Scroll } from "../ui/Scroll";
import { StateBadge } from "../ui/states";

export function AgentList(): ReactElement {
  const query = useInfiniteQuery(queries.nodes(""));
  const version = useQuery(queries.version()).data?.version;
  const { rows, total } = queries.whole(query.data);
  return (
    <div className="stack padded">
      <h3>Agents</h3>
      <Loaded query={query} skeleton={<Skeleton height={160} />}>
        {() => rows.length === 0 ? (
          <Empty icon="server" title="No agent has enrolled">&quot;Add nodes&quot; makes a join token, and shows how to start the agent with it.</Empty>
        ) : (
          <>
            <Scroll label="Agents">
              <table>
                <thead><tr><th>Node</th><th>Enrolment</th><th>Link</th><th>State</th><th>Agent</th><th>Why</th></tr></thead>
                <tbody>{rows.map((row) => <Agent key={row.id} node={row} server={version} />)}</tbody>
              </table>
            </Scroll>
            <More query={query} shown={rows.length} total={total} one="agent" many="agents" />
          </>
        )}
      </Loaded>
      <div className="toolbar"><h3>Join tokens</h3><AddNodes /></div>
      <JoinTokens />
    </div>
  );
}

function Agent({ node, server }: { node: Node; server: string | undefined }): ReactElement {
  const other = server !== undefined && node.agent_version !== "" && node.agent_version !== server;
  return (
    <tr>
      <td><Link className="cell-name" to={paths.node(node.id)}>{node.name}</Link></td>
      <td className="nowrap">{node.revoked ? <span className="text-bad">revoked</span> : node.held ? "waits for an administrator" : "enrolled"}</td>
      <td className="nowrap">{node.connected ? "connected" : <span className="text-bad">not connected</span>}</td>
      <td><StateBadge kind="node" state={node.state} /></td>
      <td>{node.agent_version || <span className="missing">not reported</span>}{other ? <div className="muted">the server is {server}</div> : null}</td>
      <td className={node.state_reason ? "muted words" : "muted"}>{node.state_reason}</td>
    </tr>
  );
}

function JoinTokens(): ReactElement {
  const query = useInfiniteQuery(queries.joinTokens());
  const [revokes, setRevokes] = useState<JoinToken | null>(null);
  const client = useQueryClient();
  const { rows, total } = queries.whole(query.data);
  const close = (): void => {
    setRevokes(null);
    void client.invalidateQueries({ queryKey: queries.keys.joinTokens });
  };
  return (
    <Loaded query={query} skeleton={<Skeleton height={100} />}>
      {() => rows.length === 0 ? <Empty icon="key" title="No join tokens" /> : (
        <>
          <Scroll label="Join tokens">
            <table>
              <thead><tr><th>For</th><th className="num">Uses left</th><th>By</th><th>Made</th><th>State</th><th>Id</th><th /></tr></thead>
              <tbody>{rows.map((row) => <Join key={row.id} row={row} onRevoke={() => setRevokes(row)} />)}</tbody>
            </table>
          </Scroll>
          <More query={query} shown={rows.length} total={total} one="join token" many="join tokens" />
          {revokes ? (
            <ConfirmDialog
              title={`Revoke the join token for ${bound(revokes)}`} confirmLabel="Revoke" danger plain onClose={close}
              onConfirm={async () => (await post("/join-tokens/{token_id}:revoke", { token_id: revokes.id }, {})).detail}
              blastRadius="No agent enrols with it any more. Nodes that enrolled with it stay."
            />
          ) : null}
        </>
      )}
    </Loaded>
  );
}

/** Whom it is for, in words. */
function bound(row: JoinToken): string {
  const parts = [row.name || row.name_pattern, row.pool ? `pool ${row.pool}` : "", row.cidr];
  return parts.filter((part) => part !== "").join(", ") || "any node";
}

function Join({ row, onRevoke }: { row: JoinToken; onRevoke: () => void }): ReactElement {
  const now = useNow();
  const ended = Date.parse(row.expires_at) <= now;
  const over = row.revoked_at !== null || ended || row.uses_left === 0;
  const why = row.revoked_at ? <>revoked <Time at={row.revoked_at} /></> : row.uses_left === 0 ? "used up" : ended ? <>ended <Time at={row.expires_at} /></> : <>counts until <Time at={row.expires_at} /></>;
  return (
    <tr className={over ? "stale-row" : undefined}>
      <td className="words">{bound(row)}{row.hold ? <div className="muted">its nodes wait for an administrator</div> : null}{row.takeover ? <div className="muted">the known node may get a new key</div> : null}</td>
      <td className="num">{count(row.uses_left)}</td>
      <td>{row.created_by}</td>
      <td><Time at={row.created_at} /></td>
      <td className="nowrap">{why}</td>
      <td><Id id={row.id} short={`...${row.id.slice(-6)}`} /></td>
      <td>{over ? null : <ActButton does="/join-tokens/{token_id}:revoke" project={null} className="danger small" label={`Revoke the join token for ${bound(row)}`} onPress={onRevoke}>Revoke</ActButton>}</td>
    </tr>
  );
}
