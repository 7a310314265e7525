/* A job as of one moment: the newest summaries of it and of its parts until then, and the steps committed by then. */
import { useQuery } from "@tanstack/react-query";
import { type ReactElement, useMemo } from "react";
import * as queries from "../api/queries";
import type { Checkpoint, Decision, Incident, Job, JobDetail, Replica, Step } from "../api/types";
import { NotKept } from "../components/Frozen";
import { FrozenEvents } from "../components/FrozenEvents";
import { IncidentTable } from "../components/IncidentTable";
import { CheckpointTable, DecisionList } from "../components/JobTabs";
import { TABLE_RANKS } from "../components/JobMesh";
import { Lifeline } from "../components/Lifeline";
import { ReplicaHistoryAt } from "../components/ReplicaHistory";
import { Drawn } from "../components/StepCharts";
import { count, duration, fixed, percent, shortId } from "../lib/format";
import { latest, replicasAt, stepsUntil } from "../lib/frozen";
import { doneWith } from "../lib/jobnow";
import { ranksPerReplica } from "../lib/layout";
import { paths } from "../lib/paths";
import { Bar, Empty, Figure, Id, Loaded, PageHead, Panel, Skeleton, Time } from "../ui/basics";
import { Tabs } from "../ui/tabs";
import { StateBadge, styleOf } from "../ui/states";

interface At {
  iso: string;
  ms: number;
}

export function FrozenJob({ id, at }: { id: string; at: At }): ReactElement {
  const job = useQuery(queries.job(id));
  return (
    <Loaded query={job} head={<PageHead crumbs={[{ to: paths.jobs(), text: "Jobs" }]} title={id} />} skeleton={<Skeleton height={480} />}>
      {(data) => (Date.parse(data.created_at) > at.ms ? <NotYet job={data} /> : <Then job={data} at={at} />)}
    </Loaded>
  );
}

function NotYet({ job }: { job: JobDetail }): ReactElement {
  return (
    <>
      <PageHead crumbs={[{ to: paths.jobs(), text: "Jobs" }]} title={job.name} />
      <Empty icon="hourglass" title="This job did not exist at that time">It was submitted <Time at={job.created_at} />.</Empty>
    </>
  );
}

/** The parts of one kind as they were; `whole`: none was left out because there are too many. */
function useParts<T>(id: string, at: At, entity: "incident" | "decision" | "checkpoint" | "replica"): { rows: T[]; whole: boolean; read: boolean; error: unknown } {
  const { data, error } = useQuery(queries.jobUntil(id, at.iso, entity));
  const rows = useMemo(() => latest<T>(data?.items ?? []), [data]);
  return { rows, whole: (data?.items.length ?? 0) < queries.LARGE_PAGE, read: data !== undefined, error };
}

/** The steps of the attempt that ran then, and the last of them exactly. */
function useStepsThen(job: JobDetail, at: At): { steps: Step[]; last: Step | undefined; pending: boolean; error: unknown; refetch: () => unknown } {
  const attempt = job.attempts.filter((item) => Date.parse(item.started_at) <= at.ms).at(-1)?.number ?? 0;
  const read = useQuery({ ...queries.stepsOf(job.id, attempt), enabled: attempt > 0 });
  const thinned = useMemo(() => stepsUntil(read.data?.items ?? [], at.ms), [read.data, at.ms]);
  const end = thinned.at(-1);
  const exact = useQuery({ ...queries.stepsOf(job.id, attempt, end?.step ?? 0), enabled: end !== undefined }).data;
  const steps = useMemo(() => {
    const more = stepsUntil(exact?.items ?? [], at.ms).filter((step) => step.step > (end?.step ?? -1));
    return more.length > 0 ? [...thinned, more.at(-1)!] : thinned;
  }, [thinned, exact, end, at.ms]);
  return { steps, last: steps.at(-1), pending: attempt > 0 && read.isPending, error: read.error, refetch: read.refetch };
}

function Then({ job, at }: { job: JobDetail; at: At }): ReactElement {
  const state = useQuery(queries.jobUntil(job.id, at.iso, "job", 1));
  const was = latest<Job>(state.data?.items ?? [])[0];
  const steps = useStepsThen(job, at);
  const incidents = useParts<Incident>(job.id, at, "incident");
  const decisions = useParts<Decision>(job.id, at, "decision");
  const checkpoints = useParts<Checkpoint>(job.id, at, "checkpoint");
  const large = job.layout !== null && ranksPerReplica(job.layout) * Number(job.layout.dp) > TABLE_RANKS;
  const parts = [incidents, decisions, checkpoints];
  return (
    <>
      <title>{`${job.name} at ${at.iso} - Holdfast`}</title>
      <PageHead crumbs={[{ to: paths.jobs(), text: "Jobs" }]} title={job.name} badge={was ? <StateBadge kind="job" state={was.state} /> : state.isPending ? undefined : <NotKept what="state" />}>
        {was ? <p className="why">{was.state_reason} <span className="muted">Since <Time at={was.state_since} />.</span></p> : null}
        <div className="meta"><span className="chip">{job.project} / {job.owner}</span><Id id={job.id} short={shortId(job.id)} /></div>
      </PageHead>
      <Figures job={job} was={was} last={steps.last} checkpoints={checkpoints.rows} />
      <p className="muted">Readings of single ranks, the effective time, the time left and the work at risk are not kept for this time.</p>
      {steps.last || steps.pending || steps.error ? <Drawn source={steps} incidents={incidents.rows} checkpoints={checkpoints.rows} /> : <Panel title="Loss and step time"><Empty icon="hourglass" title="No step is kept for this time" /></Panel>}
      {large ? <LargeHistory job={job} at={at} incidents={incidents.rows} decisions={decisions.rows} checkpoints={checkpoints.rows} /> : <History job={job} at={at} incidents={incidents.rows} decisions={decisions.rows} checkpoints={checkpoints.rows} />}
      {parts.every((part) => part.whole) ? null : <p className="muted">Of incidents, decisions and checkpoints the newest changes until then are shown; there are older ones.</p>}
      <div className="panel">
        <Tabs
          label="Parts of the job"
          tabs={[
            { id: "events", label: "Events", body: () => <FrozenEvents of={{ job: job.id }} at={at.iso} /> },
            { id: "incidents", label: "Incidents", count: incidents.rows.length, body: () => (incidents.rows.length === 0 ? <Empty title="No incident is known until then" /> : <IncidentTable incidents={incidents.rows.toReversed()} dense />) },
            { id: "decisions", label: "Decisions", count: decisions.rows.length, body: () => <DecisionList decisions={decisions.rows.toReversed()} /> },
            { id: "checkpoints", label: "Checkpoints", count: checkpoints.rows.length, body: () => (checkpoints.rows.length === 0 ? <Empty icon="disk" title="No checkpoint until then" /> : <CheckpointTable rows={checkpoints.rows.toReversed()} />) },
          ]}
        />
      </div>
    </>
  );
}

function Figures({ job, was, last, checkpoints }: { job: JobDetail; was: Job | undefined; last: Step | undefined; checkpoints: readonly Checkpoint[] }): ReactElement {
  const done = last ? doneWith(last) : null;
  const saved = checkpoints.filter((item) => item.committed_at !== null && item.state !== "corrupt" && item.state !== "pruned").sort((a, b) => b.step - a.step)[0];
  return (
    <div className="stack-tight">
      <div className="progress-line">
        <Bar ratio={done === null || job.total_steps === 0 ? 0 : done / job.total_steps} tone={was ? styleOf("job", was.state).tone : "idle"} label="Progress" />
        <span>{done === null ? "no step is kept for this time" : <>step <b>{count(done)}</b> of {count(job.total_steps)} ({percent(done / Math.max(1, job.total_steps), 1)})</>}</span>
      </div>
      <dl className="figures">
        <Figure label="Loss" value={last ? fixed(last.loss, 4) : <NotKept />} />
        <Figure label="Step time" value={last ? duration(last.step_time_s) : <NotKept />} note={last ? <>of the step committed <Time at={last.at} /></> : undefined} />
        <Figure label="Replicas" value={was ? `${was.replicas_active} / ${was.replicas_total}` : <NotKept />} note={was ? "contributing / wanted" : undefined} />
        <Figure label="Attempt / epoch" value={was ? `${was.attempt ?? "none"} / ${was.epoch}` : <NotKept />} />
        <Figure label="Restarts / evictions" value={was ? `${was.restarts} / ${was.evictions}` : <NotKept />} />
        <Figure label="Last checkpoint" value={saved ? `step ${count(saved.step)}` : "none known"} note={saved ? <Time at={saved.committed_at} /> : undefined} />
      </dl>
    </div>
  );
}

interface HistoryProps {
  job: JobDetail;
  at: At;
  incidents: Incident[];
  decisions: Decision[];
  checkpoints: Checkpoint[];
}

function LargeHistory({ job, at, incidents, decisions, checkpoints }: HistoryProps): ReactElement {
  const { rows } = useParts<Replica>(job.id, at, "replica");
  const states = useMemo(() => new Map(rows.map((row) => [row.id, row])), [rows]);
  const marks = useMemo(() => ({ incidents, decisions: decisions.filter((item) => !item.routine), checkpoints }), [incidents, decisions, checkpoints]);
  return <ReplicaHistoryAt job={job} states={states} marks={marks} ms={at.ms} />;
}

function History({ job, at, incidents, decisions, checkpoints }: HistoryProps): ReactElement | null {
  const replicas = useQuery(queries.replicas(job.id, true)).data?.items;
  const states = useParts<Replica>(job.id, at, "replica");
  const shown = useMemo(() => replicasAt(replicas ?? [], new Map(states.rows.map((row) => [row.id, row])), at.ms), [replicas, states.rows, at.ms]);
  if (!states.read || shown.length === 0) return null;
  return <Lifeline replicas={shown} incidents={incidents} decisions={decisions} checkpoints={checkpoints} startedAt={job.created_at} finishedAt={at.iso} older={null} />;
}
