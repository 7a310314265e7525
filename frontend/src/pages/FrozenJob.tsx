/* A job as of one moment: the newest summaries of it and of its parts until then, and the steps committed by then. */
import { useQuery } from "@tanstack/react-query";
import { type ReactElement, useMemo } from "react";
import * as queries from "../api/queries";
import type { Checkpoint, Decision, Incident, Job, JobDetail, Replica, Step } from "../api/types";
import { Kept } from "../components/Frozen";
import { FrozenEvents } from "../components/FrozenEvents";
import { IncidentTable } from "../components/IncidentTable";
import { CheckpointTable, DecisionList } from "../components/JobTabs";
import { Lifeline, LIFELINE } from "../components/Lifeline";
import { HISTORY, type Marks, ReplicaHistoryAt } from "../components/ReplicaHistory";
import { Drawn } from "../components/StepCharts";
import { count, duration, fixed, percent, shortId } from "../lib/format";
import { latest, type Reading, readingOf, replicasAt, stepsUntil } from "../lib/frozen";
import { doneWith, fewer } from "../lib/jobnow";
import { isLarge } from "../lib/layout";
import { paths } from "../lib/paths";
import { Bar, Empty, Figure, Id, Loaded, PageHead, Panel, Problem, Skeleton, Time } from "../ui/basics";
import { type Tab, Tabs } from "../ui/tabs";
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

interface Parts<T> {
  data: T[] | undefined;
  error: unknown;
  refetch: () => unknown;
  /** None was left out because there are too many. */
  whole: boolean;
}

/** The parts of one kind as they were. */
function useParts<T>(id: string, at: At, entity: "incident" | "decision" | "checkpoint" | "replica"): Parts<T> {
  const { data, error, refetch } = useQuery(queries.jobUntil(id, at.iso, entity));
  const rows = useMemo(() => (data ? latest<T>(data.items) : undefined), [data]);
  return { data: rows, error: data ? null : error, refetch, whole: (data?.items.length ?? 0) < queries.LARGE_PAGE };
}

/** The steps of the attempt that ran then, and the last of them exactly. */
function useStepsThen(job: JobDetail, at: At): { steps: Step[]; last: Reading<Step>; pending: boolean; error: unknown; refetch: () => unknown } {
  const attempt = job.attempts.filter((item) => Date.parse(item.started_at) <= at.ms).at(-1)?.number ?? 0;
  const read = useQuery({ ...queries.stepsOf(job.id, attempt), enabled: attempt > 0 });
  const thinned = useMemo(() => stepsUntil(read.data?.items ?? [], at.ms), [read.data, at.ms]);
  const end = thinned.at(-1);
  const exact = useQuery({ ...queries.stepsOf(job.id, attempt, end?.step ?? 0), enabled: end !== undefined });
  const steps = useMemo(() => {
    const more = stepsUntil(exact.data?.items ?? [], at.ms).filter((step) => step.step > (end?.step ?? -1));
    return more.length > 0 ? [...thinned, more.at(-1)!] : thinned;
  }, [thinned, exact.data, end, at.ms]);
  const none: Reading<Step> = { value: undefined, read: attempt === 0 || read.data !== undefined, error: read.error, refetch: read.refetch };
  return { steps, last: end ? readingOf(exact, () => steps.at(-1)) : none, pending: attempt > 0 && read.isPending, error: read.error, refetch: read.refetch };
}

function Then({ job, at }: { job: JobDetail; at: At }): ReactElement {
  const state = readingOf(useQuery(queries.jobUntil(job.id, at.iso, "job", 1)), ({ items }) => latest<Job>(items)[0]);
  const was = state.value;
  const steps = useStepsThen(job, at);
  const incidents = useParts<Incident>(job.id, at, "incident");
  const decisions = useParts<Decision>(job.id, at, "decision");
  const checkpoints = useParts<Checkpoint>(job.id, at, "checkpoint");
  const parts = { incidents, decisions, checkpoints };
  const marks = useMemo((): Marks => ({ incidents: incidents.data ?? [], decisions: decisions.data ?? [], checkpoints: checkpoints.data ?? [] }), [incidents.data, decisions.data, checkpoints.data]);
  /* Steps that could not be read at all are said to be so where they are drawn. */
  const failed = state.error ? state : steps.last.error && !steps.error ? steps.last : null;
  return (
    <>
      <title>{`${job.name} at ${at.iso} - Holdfast`}</title>
      <PageHead crumbs={[{ to: paths.jobs(), text: "Jobs" }]} title={job.name} badge={<Kept of={state} what="state">{(value) => <StateBadge kind="job" state={value.state} />}</Kept>}>
        {was ? <p className="why">{was.state_reason} <span className="muted">Since <Time at={was.state_since} />.</span></p> : null}
        <div className="meta"><span className="chip">{job.project} / {job.owner}</span><Id id={job.id} short={shortId(job.id)} /></div>
      </PageHead>
      {failed ? <Problem error={failed.error} retry={() => void failed.refetch()} /> : null}
      <Figures job={job} state={state} last={steps.last} checkpoints={checkpoints} />
      <p className="muted">Readings of single ranks, the effective time, the time left and the work at risk are not kept for this time.</p>
      {steps.steps.length > 0 || steps.pending || steps.error ? <Drawn source={steps} incidents={marks.incidents} checkpoints={marks.checkpoints} /> : <Panel title="Loss and step time"><Empty icon="hourglass" title="No step is kept for this time" /></Panel>}
      {isLarge(job) ? <LargeHistory job={job} at={at} marks={marks} /> : <History job={job} at={at} marks={marks} />}
      <Missing parts={parts} />
      <div className="panel"><Tabs label="Parts of the job" tabs={tabsOf(job, at, parts)} /></div>
    </>
  );
}

interface OfJob {
  incidents: Parts<Incident>;
  decisions: Parts<Decision>;
  checkpoints: Parts<Checkpoint>;
}

/** What the drawings are without. */
function Missing({ parts }: { parts: OfJob }): ReactElement | null {
  const unread = Object.entries(parts).filter(([, part]) => part.error).map(([name]) => name);
  const whole = Object.values(parts).every((part: Parts<unknown>) => part.whole);
  if (unread.length > 0) return <p className="text-bad" role="alert">Not drawn, because they could not be read: {unread.join(", ")}. They can be read again in their lists below.</p>;
  return whole ? null : <p className="muted">Of incidents, decisions and checkpoints the newest changes until then are shown; there are older ones.</p>;
}

function tabsOf(job: JobDetail, at: At, { incidents, decisions, checkpoints }: OfJob): Tab[] {
  return [
    { id: "events", label: "Events", body: () => <FrozenEvents of={{ job: job.id }} at={at.iso} /> },
    { id: "incidents", label: "Incidents", count: incidents.data?.length, body: () => <Loaded query={incidents}>{(rows) => (rows.length === 0 ? <Empty title="No incident is known until then" /> : <IncidentTable incidents={rows.toReversed()} dense />)}</Loaded> },
    { id: "decisions", label: "Decisions", count: decisions.data?.length, body: () => <Loaded query={decisions}>{(rows) => <DecisionList decisions={rows.toReversed()} />}</Loaded> },
    { id: "checkpoints", label: "Checkpoints", count: checkpoints.data?.length, body: () => <Loaded query={checkpoints}>{(rows) => (rows.length === 0 ? <Empty icon="disk" title="No checkpoint until then" /> : <CheckpointTable rows={rows.toReversed()} />)}</Loaded> },
  ];
}

/** "none": nothing was committed until then, by what is kept. */
const lastSaved = (rows: readonly Checkpoint[]): Checkpoint | "none" =>
  rows.filter((item) => item.committed_at !== null && item.state !== "corrupt" && item.state !== "pruned").sort((a, b) => b.step - a.step)[0] ?? "none";

function Figures({ job, state, last, checkpoints }: { job: JobDetail; state: Reading<Job>; last: Reading<Step>; checkpoints: Parts<Checkpoint> }): ReactElement {
  const was = state.value;
  const step = last.value;
  const saved = readingOf(checkpoints, lastSaved);
  return (
    <div className="stack-tight">
      <div className="progress-line">
        {step ? <Bar ratio={job.total_steps === 0 ? 0 : doneWith(step) / job.total_steps} tone={was ? styleOf("job", was.state).tone : "idle"} label="Progress" /> : null}
        <span><Kept of={last} what="last step">{(value) => <>step <b>{count(doneWith(value))}</b> of {count(job.total_steps)} ({percent(doneWith(value) / Math.max(1, job.total_steps), 1)})</>}</Kept></span>
      </div>
      <dl className="figures">
        <Figure label="Loss" value={<Kept of={last}>{(value) => fixed(value.loss, 4)}</Kept>} note={step && step.steps > 1 ? "their mean" : undefined} />
        <Figure label="Step time" value={<Kept of={last}>{(value) => duration(value.step_time_s)}</Kept>} note={step ? <>{step.steps > 1 ? `mean of the ${count(step.steps)} steps kept as one, the last` : "of the step"} committed <Time at={step.at} /></> : undefined} />
        <Figure label="Replicas" value={<Kept of={state}>{(value) => `${value.replicas_active} / ${value.replicas_total}`}</Kept>} note={was ? `contributing / ${fewer(was) ? `placed, ${was.replicas_asked} asked for` : "wanted"}` : undefined} />
        <Figure label="Attempt / epoch" value={<Kept of={state}>{(value) => `${value.attempt ?? "none"} / ${value.epoch}`}</Kept>} />
        <Figure label="Restarts / evictions" value={<Kept of={state}>{(value) => `${value.restarts} / ${value.evictions}`}</Kept>} />
        <Figure label="Last checkpoint" value={<Kept of={saved}>{(value) => (value === "none" ? "none known" : `step ${count(value.step)}`)}</Kept>} note={saved.value && saved.value !== "none" ? <Time at={saved.value.committed_at} /> : undefined} />
      </dl>
    </div>
  );
}

function LargeHistory({ job, at, marks }: { job: JobDetail; at: At; marks: Marks }): ReactElement {
  const changes = useParts<Replica>(job.id, at, "replica");
  const states = useMemo(() => (changes.data ? new Map(changes.data.map((row) => [row.id, row])) : undefined), [changes.data]);
  const notable = useMemo(() => ({ ...marks, decisions: marks.decisions.filter((item) => !item.routine) }), [marks]);
  if (states) return <ReplicaHistoryAt job={job} states={states} marks={notable} ms={at.ms} />;
  return <Panel title={HISTORY}><Loaded query={changes}>{() => null}</Loaded></Panel>;
}

function History({ job, at, marks }: { job: JobDetail; at: At; marks: Marks }): ReactElement | null {
  const replicas = useQuery(queries.replicas(job.id, true));
  const changes = useParts<Replica>(job.id, at, "replica");
  const shown = useMemo(() => {
    const states = changes.data ? new Map(changes.data.map((row) => [row.id, row])) : undefined;
    return replicas.data && states ? replicasAt(replicas.data.items, states, at.ms) : undefined;
  }, [replicas.data, changes.data, at.ms]);
  if (!shown) {
    const both = { data: undefined, error: replicas.data ? changes.error : replicas.error, refetch: () => [replicas, changes].map((part) => part.data ?? part.refetch()) };
    return <Panel title={LIFELINE}><Loaded query={both}>{() => null}</Loaded></Panel>;
  }
  if (shown.length === 0) return null;
  return <Lifeline replicas={shown} {...marks} startedAt={job.created_at} finishedAt={at.iso} older={null} />;
}
