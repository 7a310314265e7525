/* Nodes that are reserved for projects: the list, what a node's head says of it, and the dialogs that set and cancel one. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { type ReactElement, useState } from "react";
import { Link } from "react-router";
import { post } from "../api/client";
import * as queries from "../api/queries";
import type { Reservation } from "../api/types";
import { count } from "../lib/format";
import { paths } from "../lib/paths";
import { nodesOf, reservedText } from "../lib/reservations";
import { inHours, instant } from "../lib/window";
import { useRefresh } from "../live/hooks";
import { ActButton } from "../ui/ActButton";
import { Empty, Loaded, Panel, Skeleton, Time } from "../ui/basics";
import { ConfirmDialog } from "../ui/dialog";
import { Scroll } from "../ui/Scroll";

export function Reservations(): ReactElement {
  const query = useQuery(queries.reservations());
  const [asked, setAsked] = useState<Reservation | "new" | null>(null);
  const refresh = useRefresh();
  const close = (): void => { setAsked(null); refresh(queries.keys.reservations); };
  return (
    <Panel title="Reserved nodes" flush actions={<ActButton does="/reservations" project={null} className="small" onPress={() => setAsked("new")}>Reserve nodes</ActButton>}>
      <Loaded query={query} skeleton={<div className="padded"><Skeleton lines={2} /></div>}>
        {(found) => found.items.length === 0 ? <Empty title="No nodes are reserved">An operator of the fleet reserves nodes for a project: its jobs alone start there.</Empty> : <List rows={found.items} more={(found.total ?? 0) - found.items.length} onCancel={setAsked} />}
      </Loaded>
      {asked === "new" ? <ReserveDialog onClose={close} /> : asked ? <CancelDialog reservation={asked} onClose={close} /> : null}
    </Panel>
  );
}

function List({ rows, more, onCancel }: { rows: Reservation[]; more: number; onCancel: (row: Reservation) => void }): ReactElement {
  return (
    <>
      <Scroll label="Reserved nodes">
        <table>
          <thead><tr><th>For</th><th>Nodes</th><th>From</th><th>Until</th><th>Why</th><th aria-label="Acts" /></tr></thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.id}>
                <td>{row.project}</td>
                <td className="words">{row.nodes.map((node, index) => <span key={node.id}>{index > 0 ? ", " : ""}<Link to={paths.node(node.id)}>{node.name}</Link></span>)}{nodesOf(row)}</td>
                <td className="nowrap"><Time at={row.starts_at} /></td>
                <td className="nowrap"><Time at={row.ends_at} /></td>
                <td className="words">{row.reason} {row.who ? <span className="muted">({row.who})</span> : null}</td>
                <td>{"cancel" in row.capabilities ? <ActButton does="/reservations/{reservation_id}:cancel" of={row} project={null} onPress={() => onCancel(row)}>Cancel</ActButton> : null}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {more > 0 ? <p className="padded muted">{count(more)} more.</p> : null}
    </>
  );
}

/** For whom the node is reserved, or will be. */
export function ReservedLine({ nodeId }: { nodeId: string }): ReactElement | null {
  const rows = useQuery(queries.reservationsOf(nodeId)).data?.items ?? [];
  const next = rows.at(-1);
  if (!next) return null;
  return (
    <p className="why">
      {reservedText(next, new Date())} <Time at={next.starts_at} /> until <Time at={next.ends_at} />{next.reason ? `: ${next.reason}` : ""}. <span className="muted">Only its jobs start here then; what runs here stays.{rows.length > 1 ? ` ${count(rows.length - 1)} more follow.` : ""}</span>
    </p>
  );
}

function CancelDialog({ reservation, onClose }: { reservation: Reservation; onClose: () => void }): ReactElement {
  return (
    <ConfirmDialog
      title="Cancel the reservation" confirmLabel="Cancel it" onClose={onClose}
      onConfirm={async (reason) => (await post("/reservations/{reservation_id}:cancel", { reservation_id: reservation.id }, { reason })).detail}
      blastRadius={<>{count(reservation.node_count)} {reservation.node_count === 1 ? "node is" : "nodes are"} everybody's again, and no longer {reservation.project}'s own. What runs there stays.</>}
    />
  );
}

function ReserveDialog({ onClose }: { onClose: () => void }): ReactElement {
  const [project, setProject] = useState("");
  const [nodes, setNodes] = useState<string[]>([]);
  const [segment, setSegment] = useState("");
  const [start, setStart] = useState(inHours(new Date(), 0));
  const [end, setEnd] = useState(inHours(new Date(), 24));
  const projects = queries.whole(useInfiniteQuery(queries.projects()).data).rows;
  const fleet = queries.whole(useInfiniteQuery(queries.fleet()).data).rows;
  const send = async (reason: string): Promise<string> => {
    const over = segment === "" ? { nodes } : { segment };
    return (await post("/reservations", {}, { project, starts_at: instant(start), ends_at: instant(end), reason, ...over })).detail;
  };
  return (
    <ConfirmDialog
      title="Reserve nodes" confirmLabel="Reserve" onClose={onClose} onConfirm={send}
      blastRadius={
        <>
          <p>From its begin until its end only jobs of the project start on these nodes, and before it no others that are not expected to be over by then. What runs there stays.</p>
          <label className="field"><span>Project</span>
            <select value={project} required onChange={(event) => setProject(event.target.value)}><option value="">choose one</option>{projects.map((each) => <option key={each.name}>{each.name}</option>)}</select>
          </label>
          <label className="field"><span>Nodes</span>
            <select multiple value={nodes} disabled={segment !== ""} onChange={(event) => setNodes([...event.target.selectedOptions].map((each) => each.value))}>{fleet.map((each) => <option key={each.id} value={each.id}>{each.name}</option>)}</select>
          </label>
          <label className="field"><span>or all of a segment</span><input type="text" value={segment} maxLength={63} onChange={(event) => setSegment(event.target.value)} /></label>
          <label className="field"><span>Starts (local time)</span><input type="datetime-local" value={start} required onChange={(event) => setStart(event.target.value)} /></label>
          <label className="field"><span>Ends (local time)</span><input type="datetime-local" value={end} required onChange={(event) => setEnd(event.target.value)} /></label>
        </>
      }
    />
  );
}
