/* What the scheduler that gives the nodes out believes: on a node's page, on that of the queue, and on a job's. */
import { useQuery } from "@tanstack/react-query";
import { type ReactElement, useState } from "react";
import { Link } from "react-router";
import { post } from "../api/client";
import * as queries from "../api/queries";
import type { Engine, Intent, JobDetail, NodeDetail, Pilot, Pool } from "../api/types";
import { countsText, intentText, KINDS, poolsText } from "../lib/engine";
import { count, duration } from "../lib/format";
import { paths } from "../lib/paths";
import { useRefresh } from "../live/hooks";
import { ActButton } from "../ui/ActButton";
import { Empty, Panel, Time } from "../ui/basics";
import { ConfirmDialog } from "../ui/dialog";
import { Scroll } from "../ui/Scroll";

/** Nothing where no scheduler is asked, or it has never named this node. */
export function NodeEngine({ node }: { node: NodeDetail }): ReactElement | null {
  const engine = node.engine;
  if (!engine) return null;
  return (
    <Panel title="What Slurm believes">
      {engine.differs ? <p className="why text-warn">{engine.differs}</p> : <p>Slurm and Holdfast agree about this node.</p>}
      <dl className="pairs">
        <div><dt>State</dt><dd><code>{engine.state}</code>{engine.name !== node.name ? <span className="muted"> as {engine.name}</span> : null}</dd></div>
        <div><dt>Reason</dt><dd>{engine.reason === null ? <span className="missing">cannot be read</span> : engine.reason || <span className="muted">none</span>}{engine.reason_by ? <span className="muted"> ({engine.reason_by}{engine.reason_at ? <>, <Time at={engine.reason_at} /></> : null})</span> : null}</dd></div>
        <div><dt>Allocation</dt><dd>{engine.allocation ? <Ends pilot={engine.allocation} /> : <span className="muted">{engine.piloted ? "no pilot runs here" : "none; its agent is there for good"}</span>}</dd></div>
        <div><dt>Seen</dt><dd><Time at={engine.seen_at} />{engine.error ? <span className="text-warn"> The newest answer was none: {engine.error}</span> : null}</dd></div>
      </dl>
      {engine.intents.length > 0 ? <Intents rows={engine.intents} /> : null}
    </Panel>
  );
}

function Ends({ pilot }: { pilot: Pilot }): ReactElement {
  return (
    <>
      pilot <code>{pilot.allocation}</code>, {pilot.ends_at ? <>until <Time at={pilot.ends_at} /></> : "without a known end"}
      {pilot.grace_s === null ? null : <span className="muted"> (notice {duration(pilot.grace_s)} before)</span>}
    </>
  );
}

function Intents({ rows }: { rows: Intent[] }): ReactElement {
  return (
    <Scroll label="What Slurm is asked for">
      <table>
        <thead><tr><th>Asked for</th><th>Since</th><th>State</th><th className="num">Tries</th><th>Why</th><th>What came of it</th></tr></thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.id}>
              <td>{intentText(row)}</td>
              <td><Time at={row.made_at} /></td>
              <td>{row.state}{row.due_at ? <div className="muted">again <Time at={row.due_at} /></div> : null}</td>
              <td className="num">{row.tries}</td>
              <td className="words">{row.reason} <span className="muted">({row.who})</span></td>
              <td className="words">{row.detail}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

/** Nothing where no scheduler is asked. */
export function Pools(): ReactElement | null {
  const engine = useQuery(queries.engines()).data?.items.find((each) => each.asked);
  const [asked, setAsked] = useState<Pool | null>(null);
  const refresh = useRefresh();
  if (!engine) return null;
  return (
    <Panel title="Pools of Slurm's nodes" flush actions={<Answered engine={engine} />}>
      {engine.pools.length === 0 ? <Empty title="No pilots">Slurm lists none that lend their nodes. <code>holdfast slurm pilots</code> submits some.</Empty> : engine.pools.map((pool) => <PoolTable key={pool.id} pool={pool} onResize={() => setAsked(pool)} />)}
      {engine.intents.length > 0 ? <Intents rows={engine.intents} /> : null}
      {asked ? <ResizeDialog pool={asked} onClose={() => { setAsked(null); refresh(queries.keys.engines); }} /> : null}
    </Panel>
  );
}

function Answered({ engine }: { engine: Engine }): ReactElement {
  if (engine.error) return <span className="text-warn" role="status">No answer: {engine.error}. {engine.answered_at ? <>The last one came <Time at={engine.answered_at} />.</> : null}</span>;
  return <span className="muted">{engine.answered_at ? <>answered <Time at={engine.answered_at} /></> : "not asked yet"}</span>;
}

function PoolTable({ pool, onResize }: { pool: Pool; onResize: () => void }): ReactElement {
  return (
    <>
      <p className="padded">Pool <b>{pool.id}</b>{pool.owner ? ` of ${pool.owner}` : ""}: {countsText(pool)}. <ActButton does="/pools/{pool_id}:resize" project={null} className="small" onPress={onResize}>Resize</ActButton></p>
      <Scroll label={`Pilots of pool ${pool.id}`}>
        <table>
          <thead><tr><th>Pilot</th><th>Is</th><th>Node</th><th>Starts</th><th>Ends</th><th className="num">Notice</th><th>Slurm's reason for waiting</th></tr></thead>
          <tbody>
            {pool.elements.map((pilot) => (
              <tr key={pilot.allocation}>
                <td><code>{pilot.allocation}</code></td>
                <td title={KINDS[pilot.kind]?.meaning}>{KINDS[pilot.kind]?.text ?? pilot.kind}<div className="muted">{pilot.state.toLowerCase()}</div></td>
                <td>{pilot.node_id ? <Link to={paths.node(pilot.node_id)}>{pilot.node_name}</Link> : pilot.node_name || <span className="muted">none yet</span>}</td>
                <td>{pilot.starts_at ? <Time at={pilot.starts_at} /> : <span className="missing">not known</span>}</td>
                <td>{pilot.ends_at ? <Time at={pilot.ends_at} /> : <span className="missing">not known</span>}</td>
                <td className="num">{pilot.grace_s === null ? "-" : duration(pilot.grace_s)}</td>
                <td className="words">{pilot.waits}</td>
              </tr>
            ))}
            {pool.elements_left_out > 0 ? <tr><td colSpan={7} className="muted">{count(pool.elements_left_out)} more are counted and not shown</td></tr> : null}
          </tbody>
        </table>
      </Scroll>
    </>
  );
}

function ResizeDialog({ pool, onClose }: { pool: Pool; onClose: () => void }): ReactElement {
  const most = KEYS.reduce((sum, key) => sum + pool[key], 0);
  const [size, setSize] = useState(String(pool.in_use + pool.idle));
  return (
    <ConfirmDialog
      title={`Resize pool ${pool.id}`} confirmLabel="Resize" onClose={onClose}
      onConfirm={async (reason) => (await post("/pools/{pool_id}:resize", { pool_id: pool.id }, { size: Number(size), reason })).detail}
      blastRadius={
        <>
          <p>So many of its pilots run at a time. More start from those that wait in Slurm&apos;s queue; of fewer, spare ones are given back now, and those with ranks on their node stay until they end.</p>
          <label className="field"><span>Pilots at a time (1 to {most})</span><input type="number" min={1} max={most} value={size} required onChange={(event) => setSize(event.target.value)} /></label>
        </>
      }
    />
  );
}

const KEYS = ["in_use", "idle", "cold", "held", "other"] as const;

/** Where a job's nodes come from, how long they last, and what happens at the end. */
export function JobEngine({ job }: { job: JobDetail }): ReactElement | null {
  const engine = job.engine;
  if (!engine || engine.nodes === 0) return null;
  if (engine.lent === 0) return <p className="muted">Its {count(engine.nodes)} nodes have agents of their own: no pilot of Slurm&apos;s lends them.</p>;
  const next = engine.allocations[0];
  return (
    <p className="muted">
      {poolsText(engine)} {engine.first_end_at && next ? <>The first, {next.node_id ? <Link to={paths.node(next.node_id)}>{next.node_name}</Link> : next.node_name}, ends <Time at={engine.first_end_at} />.</> : "None has an end that is known."}
      {" "}Before it does, Slurm gives notice{next?.grace_s ? ` of ${duration(next.grace_s)}` : ""}: its replicas move to other nodes or are left out, and where neither fits the job saves and waits until there are pilots again.
    </p>
  );
}
