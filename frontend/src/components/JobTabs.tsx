/* The rest of a job: events, incidents, decisions, checkpoints, attempts, spec. */
import { type InfiniteData, useInfiniteQuery, type UseInfiniteQueryResult } from "@tanstack/react-query";
import { type ReactElement, useState } from "react";
import * as queries from "../api/queries";
import type { Checkpoint, Decision, Incident, JobDetail, Page } from "../api/types";
import { CertificateBadge } from "./Certificate";
import { bytes, count, duration, words } from "../lib/format";
import { layoutParts } from "../lib/layout";
import { CopyButton, Empty, Loaded, Time } from "../ui/basics";
import { More } from "../ui/More";
import { StateBadge } from "../ui/states";
import { Tabs } from "../ui/tabs";
import { DecisionRow } from "./DecisionRow";
import { EventTable } from "./EventTable";
import { IncidentTable } from "./IncidentTable";
import { Maturity } from "./Maturity";
import { Scroll } from "../ui/Scroll";

export function JobTabs({ job, settled }: { job: JobDetail; settled: boolean }): ReactElement {
  const incidents = useInfiniteQuery(queries.jobIncidents(job.id, settled));
  const decisions = useInfiniteQuery(queries.jobDecisions(job.id, settled));
  return (
    <div className="panel">
      <Tabs
        label="Parts of the job"
        tabs={[
          { id: "events", label: "Events", body: () => <Events jobId={job.id} settled={settled} /> },
          { id: "incidents", label: "Incidents", count: queries.whole(incidents.data).total, body: () => <Incidents query={incidents} /> },
          { id: "decisions", label: "Decisions", count: queries.whole(decisions.data).total, body: () => <Decisions query={decisions} /> },
          { id: "checkpoints", label: "Checkpoints", body: () => <Checkpoints jobId={job.id} settled={settled} /> },
          { id: "attempts", label: "Attempts", count: job.attempts.length, body: () => <Attempts job={job} /> },
          { id: "spec", label: "Spec", body: () => <Spec spec={job.spec} /> },
        ]}
      />
    </div>
  );
}

type Pages<T> = UseInfiniteQueryResult<InfiniteData<Page<T>>>;

function Incidents({ query }: { query: Pages<Incident> }): ReactElement {
  const { rows, total } = queries.whole(query.data);
  return (
    <Loaded query={query}>
      {() => (
        <>
          {rows.length === 0 ? <Empty title="No incidents">Nothing has gone wrong with this job so far.</Empty> : <IncidentTable incidents={rows} dense />}
          <More query={query} shown={rows.length} total={total} one="incident" many="incidents" />
        </>
      )}
    </Loaded>
  );
}

function Decisions({ query }: { query: Pages<Decision> }): ReactElement {
  const { rows, total } = queries.whole(query.data);
  return (
    <Loaded query={query}>
      {() => (
        <>
          <DecisionList decisions={rows} />
          <More query={query} shown={rows.length} total={total} one="decision" many="decisions" />
        </>
      )}
    </Loaded>
  );
}

function Events({ jobId, settled }: { jobId: string; settled: boolean }): ReactElement {
  const query = useInfiniteQuery(queries.jobEvents(jobId, settled));
  const { rows } = queries.whole(query.data);
  return (
    <Loaded query={query}>
      {() => (
        <>
          <EventTable events={rows} freezes />
          <More query={query} shown={rows.length} total={null} one="event" many="events" />
        </>
      )}
    </Loaded>
  );
}

/** Routine decisions (install a view, admit a joiner) are folded away until asked for. */
export function DecisionList({ decisions }: { decisions: Decision[] }): ReactElement {
  const [routine, setRoutine] = useState(false);
  const hidden = decisions.filter((decision) => decision.routine).length;
  const shown = routine ? decisions : decisions.filter((decision) => !decision.routine);
  return (
    <>
      {hidden > 0 ? (
        <label className="check"><input type="checkbox" checked={routine} onChange={(event) => setRoutine(event.target.checked)} /> Show {hidden} routine {hidden === 1 ? "decision" : "decisions"}</label>
      ) : null}
      {shown.length === 0 ? <Empty title="No decisions" /> : <ul className="rows">{shown.map((decision) => <li key={decision.id} className={decision.routine ? "routine" : ""}><DecisionRow decision={decision} /></li>)}</ul>}
    </>
  );
}

function Checkpoints({ jobId, settled }: { jobId: string; settled: boolean }): ReactElement {
  const query = useInfiniteQuery(queries.checkpoints(jobId, settled));
  const { rows, total } = queries.whole(query.data);
  return (
    <Loaded query={query}>
      {() =>
        rows.length === 0 ? (
          <Empty icon="disk" title="No checkpoint yet">The first one is due after the interval in the spec.</Empty>
        ) : (
          <>
          <CheckpointTable rows={rows} />
          <More query={query} shown={rows.length} total={total} one="checkpoint" many="checkpoints" />
          </>
        )
      }
    </Loaded>
  );
}

export function CheckpointTable({ rows }: { rows: readonly Checkpoint[] }): ReactElement {
  return (
    <Scroll label="Checkpoints">
      <table>
        <thead><tr><th>State</th><th className="num">Step</th><th className="num">Epoch</th><th>Kind</th><th className="num">Size</th><th className="num">Blocked training</th><th className="num">Took</th><th>Committed</th><th>Path</th></tr></thead>
        <tbody>
          {rows.map((item) => (
            <tr key={item.id}>
              <td><StateBadge kind="checkpoint" state={item.state} detail={item.state_reason} />{item.state_reason ? <div className="muted">{item.state_reason}</div> : null}</td>
              <td className="num">{count(item.step)}</td>
              <td className="num">{item.epoch}</td>
              <td>{words(item.kind)}</td>
              <td className="num">{bytes(item.bytes)}</td>
              <td className="num">{duration(item.blocking_s)}</td>
              <td className="num">{duration(item.total_s)}</td>
              <td>{item.committed_at ? <Time at={item.committed_at} /> : <span className="muted">not yet</span>}</td>
              <td><code>{item.path}</code></td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Attempts({ job }: { job: JobDetail }): ReactElement {
  if (job.attempts.length === 0) return <Empty icon="hourglass" title="Not launched yet">{job.why}</Empty>;
  return (
    <Scroll label="Attempts">
      <table>
        <thead><tr><th className="num">Attempt</th><th>State</th><th>Layout</th><th className="num">Replicas</th><th className="num">Resumed at step</th><th>Started</th><th>Ended</th><th>Why it ended</th><th title="Of an attempt that continued after a preemption">Certificate</th></tr></thead>
        <tbody>
          {job.attempts.map((item) => (
            <tr key={item.number}>
              <td className="num">{item.number}</td>
              <td><StateBadge kind="attempt" state={item.state} /></td>
              <td className="nowrap">{layoutParts(item.layout).map(([name, size]) => `${name} ${size}`).join(", ")}</td>
              <td className="num">{item.replicas}</td>
              <td className="num">{count(item.resume_step)}</td>
              <td><Time at={item.started_at} /></td>
              <td>{item.ended_at ? <Time at={item.ended_at} /> : <span className="muted">running</span>}</td>
              <td>{item.end_reason || <span className="muted">-</span>}</td>
              <td title={item.certificate?.checks.map((check) => check.detail).join("; ")}>{item.certificate ? <CertificateBadge certificate={item.certificate} /> : <span className="muted">-</span>}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Spec({ spec }: { spec: unknown }): ReactElement {
  const text = JSON.stringify(spec, null, 2);
  return (
    <>
      <div className="padded">
        <CopyButton text={text} what="spec" label="Copy JSON" />
        <pre className="code" tabIndex={0}>{text}</pre>
      </div>
      <Maturity spec={spec} />
    </>
  );
}
