/* One job (E53): what it does, why it is in this state, every rank live, its history, and the three acts a person may order. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Fragment, type ReactElement, useState } from "react";
import { Link, useParams } from "react-router";
import * as queries from "../api/queries";
import type { JobDetail, Rank, Replica } from "../api/types";
import { JobActions, type JobAct } from "../components/JobActions";
import { JobTabs } from "../components/JobTabs";
import { Lifeline } from "../components/Lifeline";
import { LogDialog } from "../components/LogDialog";
import { ReplicaGrid } from "../components/ReplicaGrid";
import { StepCharts } from "../components/StepCharts";
import { count, duration, fixed, percent, shortId, words } from "../lib/format";
import { layoutParts, ranksPerReplica } from "../lib/layout";
import { paths } from "../lib/paths";
import { usePatched, useTopic } from "../live/hooks";
import { Bar, Empty, Figure, Id, Loaded, PageHead, Panel, Skeleton, Time } from "../ui/basics";
import { Icon } from "../ui/icons";
import { lookOf, StateBadge } from "../ui/states";

const FINAL = new Set(["succeeded", "failed", "cancelled"]);

export function JobPage(): ReactElement {
  const { id = "" } = useParams();
  useTopic(`job:${id}`);
  const query = useQuery(queries.job(id));
  const job = usePatched("job", query.data, query.data?.as_of_seq ?? 0);
  return (
    <Loaded query={{ ...query, data: job }} skeleton={<><PageHead crumbs={[{ to: paths.jobs(), text: "Jobs" }]} title={id} /><Skeleton height={480} /></>}>
      {(data) => <Content job={data} />}
    </Loaded>
  );
}

function Content({ job }: { job: JobDetail }): ReactElement {
  const [act, setAct] = useState<JobAct | null>(null);
  const [log, setLog] = useState<Rank | null>(null);
  const client = useQueryClient();
  const final = FINAL.has(job.state);
  return (
    <>
      <title>{`${job.name} - Holdfast`}</title>
      <Head job={job} final={final} onAct={setAct} />
      {job.open_incident_id ? (
        <div className="notice tone-bad" role="status">
          <Icon name="alert" size={15} />
          <span>An incident is open on this job. <Link to={paths.incident(job.open_incident_id)}>See what was found and what is being done</Link></span>
        </div>
      ) : null}
      <Figures job={job} />
      <Replicas job={job} final={final} onEvict={(replica) => setAct({ kind: "evict", replica })} onLogs={setLog} />
      <StepCharts jobId={job.id} />
      <History job={job} />
      <JobTabs job={job} />
      {act ? <JobActions job={job} act={act} onClose={() => { setAct(null); void client.invalidateQueries({ queryKey: queries.keys.job(job.id) }); }} /> : null}
      {log ? <LogDialog jobId={job.id} rank={log} onClose={() => setLog(null)} /> : null}
    </>
  );
}

function Head({ job, final, onAct }: { job: JobDetail; final: boolean; onAct: (act: JobAct) => void }): ReactElement {
  const actions = final ? null : (
    <>
      <button type="button" className="button" onClick={() => onAct({ kind: "checkpoint" })} disabled={job.state !== "running"} title={job.state === "running" ? undefined : "Only a running job can save"}>
        <Icon name="disk" size={13} /> Checkpoint now
      </button>
      <button type="button" className="button danger" onClick={() => onAct({ kind: "cancel" })}><Icon name="ban" size={13} /> Cancel job</button>
    </>
  );
  return (
    <PageHead crumbs={[{ to: paths.jobs(), text: "Jobs" }]} title={job.name} badge={<StateBadge kind="job" state={job.state} />} actions={actions}>
      <p className="why">{job.why || job.state_reason} <span className="muted">Since <Time at={job.state_since} />.</span></p>
      <div className="meta">
        <span className="chip" title="Membership generation: raised by each change of the view; orders of older epochs are refused">epoch <b>{job.epoch}</b></span>
        <span className="chip">attempt <b>{job.attempt ?? "none"}</b></span>
        {job.layout ? <span className="chip" title={`${ranksPerReplica(job.layout)} ranks in each of ${job.layout.dp} replicas`}>{layoutParts(job.layout).map(([name, size]) => <Fragment key={name}>{name} <b>{size}</b> </Fragment>)}replicas <b>{job.layout.dp}</b></span> : null}
        <span className="chip">{job.project} / {job.owner}</span>
        <span className="chip">priority <b>{job.priority}</b></span>
        <span className="chip" title="Devices kept free for this job">spares <b>{job.spares.length === 0 ? "none" : job.spares.map((spare) => `${spare.node_name}:${spare.device_index}`).join(" ")}</b></span>
        <Id id={job.id} short={shortId(job.id)} />
      </div>
    </PageHead>
  );
}

function Figures({ job }: { job: JobDetail }): ReactElement {
  const short = job.replicas_active < job.replicas_total;
  return (
    <div className="stack-tight">
      <div className="progress-line">
        <Bar ratio={job.progress} tone={lookOf("job", job.state).tone} label="Progress" />
        <span>step <b>{count(job.committed_step)}</b> of {count(job.total_steps)} ({percent(job.progress, 1)})</span>
      </div>
      <dl className="figures">
        <Figure label="Loss" value={fixed(job.loss, 4)} />
        <Figure label="Step time" value={duration(job.step_time_s)} />
        <Figure label="Time left" value={FINAL.has(job.state) ? "ended" : duration(job.eta_s)} />
        <Figure label="Replicas" value={`${job.replicas_active} / ${job.replicas_total}`} tone={short && !FINAL.has(job.state) ? "warn" : undefined} note="contributing / wanted" />
        <Figure label="Effective time (ETTR)" value={percent(job.ettr, 1)} title="Share of wall time spent on steps that were kept" />
        <Figure label="Work at risk" value={duration(job.work_at_risk_s)} note="lost if all failed now" />
        <Figure label="Last checkpoint" value={job.last_checkpoint_step === null ? "none yet" : `step ${count(job.last_checkpoint_step)}`} note={job.last_checkpoint_age_s === null ? undefined : `${duration(job.last_checkpoint_age_s)} ago`} />
        <Figure label="Restarts / evictions" value={`${job.restarts} / ${job.evictions}`} />
      </dl>
      <Limits jobId={job.id} />
    </div>
  );
}

/** What automation may still do, and how long a step may last before it does. */
function Limits({ jobId }: { jobId: string }): ReactElement | null {
  const budget = useQuery(queries.budget(jobId)).data;
  const step = useQuery(queries.timeouts(jobId)).data?.items.find((timeout) => timeout.section === "step");
  if (!budget || !step) return null;
  const rungs = Object.entries(budget.rungs).filter(([, number]) => number > 0).map(([rung, number]) => `${number} ${words(rung)}`).join(", ");
  return (
    <p className="muted">
      Restart budget: <span title={rungs || "no restart of any rung so far"}>{budget.restarts_total} of {budget.max_restarts} spent, {budget.restarts_in_window} of {budget.restarts_per_window} within {duration(budget.window_s)}</span>, {budget.no_progress_cycles} of {budget.max_no_progress} attempts without a newer checkpoint.
      {" "}A step may last {duration(step.value_s)} ({step.source === "learned" ? `learned from ${count(step.samples)} steps` : step.why || step.source}).
    </p>
  );
}

function Replicas(props: { job: JobDetail; final: boolean; onEvict: (replica: Replica) => void; onLogs: (rank: Rank) => void }): ReactElement {
  const { job } = props;
  const replicas = useQuery(queries.replicas(job.id));
  return (
    <Panel title="Replicas and ranks">
      <Loaded query={replicas} skeleton={<Skeleton height={160} />}>
        {(page) =>
          page.items.some((replica) => replica.current) ? (
            <ReplicaGrid jobId={job.id} replicas={page.items} asOfSeq={page.as_of_seq} onEvict={props.final ? null : props.onEvict} onLogs={props.onLogs} />
          ) : (
            <Empty icon="hourglass" title={props.final ? "No replica is left" : "No replica has been started yet"}>{job.why}</Empty>
          )
        }
      </Loaded>
    </Panel>
  );
}

function History({ job }: { job: JobDetail }): ReactElement | null {
  const replicas = useQuery(queries.replicas(job.id)).data?.items;
  const incidents = useQuery(queries.jobIncidents(job.id)).data?.items;
  const decisions = useQuery(queries.jobDecisions(job.id)).data?.items;
  const checkpoints = useQuery(queries.checkpoints(job.id)).data?.items;
  if (!replicas || replicas.length === 0) return null;
  return <Lifeline replicas={replicas} incidents={incidents ?? []} decisions={decisions ?? []} checkpoints={checkpoints ?? []} startedAt={job.created_at} finishedAt={job.finished_at} />;
}
