/* One job (E53): what it does, why it is in this state, every rank live, its history, and the three acts a person may order. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Fragment, lazy, type ReactElement, Suspense, useState } from "react";
import { Link, useParams } from "react-router";
import * as queries from "../api/queries";
import type { JobDetail, Rank, Replica } from "../api/types";
import { EffectiveTime } from "../components/EffectiveTime";
import { JobEngine } from "../components/Engine";
import { AtThatTime, FreezeButton, useFrozen } from "../components/Frozen";
import { SilentNodes } from "../components/Heard";
import { JobActions, type JobAct } from "../components/JobActions";
import { JobMesh } from "../components/JobMesh";
import { JobTabs } from "../components/JobTabs";
import { Lifeline } from "../components/Lifeline";
import { LogDialog } from "../components/LogDialog";
import { QueuePlace } from "../components/QueuePlace";
import { ReplicaGrid } from "../components/ReplicaGrid";
import { StepCharts } from "../components/StepCharts";
import { ToItsId } from "../components/ToItsId";
import { retried } from "../lib/chunks";
import { count, duration, fixed, progress, shortId, words } from "../lib/format";
import { isLarge, layoutParts, ranksPerReplica } from "../lib/layout";
import { paths } from "../lib/paths";
import { useNow } from "../lib/clock";
import { ENDED_STATES as FINAL, fewer, jobNow } from "../lib/jobnow";
import { useOpened } from "../lib/recent";
import { usePatched, useRefresh, useTopic } from "../live/hooks";
import { useSteps } from "../live/steps";
import { Bar, Empty, Figure, Id, Loaded, PageHead, Panel, Skeleton, Time } from "../ui/basics";
import { ActButton } from "../ui/ActButton";
import { Icon } from "../ui/icons";
import { styleOf, StateBadge } from "../ui/states";

const ReplicaHistory = lazy(() => retried(() => import("../components/ReplicaHistory").then((module) => ({ default: module.ReplicaHistory }))));
const FrozenJob = lazy(() => retried(() => import("./FrozenJob").then((module) => ({ default: module.FrozenJob }))));

export function JobPage(): ReactElement {
  const { id = "" } = useParams();
  const frozen = useFrozen();
  if (frozen === null) return <LiveJob id={id} />;
  return <AtThatTime frozen={frozen}>{(at) => <Suspense fallback={<Skeleton height={480} />}><FrozenJob id={id} at={at} /></Suspense>}</AtThatTime>;
}

function LiveJob({ id }: { id: string }): ReactElement {
  useTopic(`job:${id}`);
  const query = useQuery(queries.job(id));
  const job = usePatched("job", query.data, query.data?.as_of_seq ?? 0);
  return (
    <Loaded query={{ ...query, data: job }} head={<><title>{`Job - Holdfast`}</title><PageHead crumbs={[{ to: paths.jobs(), text: "Jobs" }]} title={id} /></>} skeleton={<Skeleton height={480} />}>
      {(data) => (data.id === id ? <Content job={data} readMs={query.dataUpdatedAt} /> : <ToItsId of="job" row={data} />)}
    </Loaded>
  );
}

function Content({ job: read, readMs }: { job: JobDetail; readMs: number }): ReactElement {
  const [act, setAct] = useState<JobAct | null>(null);
  const [log, setLog] = useState<Rank | null>(null);
  const refresh = useRefresh();
  useOpened("job", read.id, read.name);
  const now = useNow();
  const settled = queries.isSettled(read, now);
  const source = useSteps(read.id, settled);
  const job = jobNow(read, source.steps, Math.max(0, (now - readMs) / 1000));
  const final = FINAL.has(job.state);
  const large = isLarge(job);
  return (
    <>
      <title>{`${job.name} - Holdfast`}</title>
      <Head job={job} onAct={setAct} />
      {job.open_incident_id ? (
        <div className="notice tone-bad" role="status">
          <Icon name="alert" size={15} />
          <span>An incident is open on this job. <Link to={paths.incident(job.open_incident_id)}>See what was found and what is being done</Link></span>
        </div>
      ) : null}
      {job.state === "pending" || job.state === "preempted" ? <QueuePlace jobId={job.id} /> : null}
      <Figures job={job} settled={settled} />
      {large ? <JobMesh job={job} settled={settled} onEvict={(replica) => setAct({ kind: "evict", replica })} onLogs={setLog} /> : <Replicas job={job} final={final} settled={settled} onEvict={(replica) => setAct({ kind: "evict", replica })} onLogs={setLog} />}
      <StepCharts jobId={job.id} settled={settled} source={source} />
      {large ? <Suspense fallback={<Skeleton height={360} />}><ReplicaHistory job={job} settled={settled} /></Suspense> : <History job={job} settled={settled} />}
      <JobTabs job={job} settled={settled} />
      {act ? <JobActions job={job} act={act} onClose={() => { setAct(null); refresh(queries.keys.job(job.id)); }} /> : null}
      {log ? <LogDialog jobId={job.id} project={job.project} rank={log} settled={settled} onClose={() => setLog(null)} /> : null}
    </>
  );
}

function Head({ job, onAct }: { job: JobDetail; onAct: (act: JobAct) => void }): ReactElement {
  const actions = (
    <>
      <FreezeButton />
      <ActButton of={job} project={job.project} does="/jobs/{job_id}:checkpoint" onPress={() => onAct({ kind: "checkpoint" })}><Icon name="disk" size={13} /> Checkpoint now</ActButton>
      {job.state === "preempted"
        ? <ActButton of={job} project={job.project} does="/jobs/{job_id}:resume" onPress={() => onAct({ kind: "resume" })}><Icon name="play" size={13} /> Resume</ActButton>
        : <ActButton of={job} project={job.project} does="/jobs/{job_id}:preempt" onPress={() => onAct({ kind: "preempt" })}><Icon name="hourglass" size={13} /> Preempt</ActButton>}
      <ActButton of={job} project={job.project} does="/jobs/{job_id}:cancel" className="danger" onPress={() => onAct({ kind: "cancel" })}><Icon name="ban" size={13} /> Cancel job</ActButton>
    </>
  );
  return (
    <PageHead crumbs={[{ to: paths.jobs(), text: "Jobs" }]} title={job.name} badge={<StateBadge kind="job" state={job.state} />} actions={actions}>
      <p className="why">{job.why || job.state_reason} <span className="muted">Since <Time at={job.state_since} />.</span></p>
      <div className="meta">
        <span className="chip" title="Membership generation: raised by each change of the view; commands of older epochs are refused">epoch <b>{job.epoch}</b></span>
        <span className="chip">attempt <b>{job.attempt || "none"}</b></span>
        {job.layout ? <span className="chip" title={`${ranksPerReplica(job.layout)} ranks in each of ${job.layout.dp} replicas`}>{layoutParts(job.layout).map(([name, size]) => <Fragment key={name}>{name} <b>{size}</b> </Fragment>)}replicas <b>{job.layout.dp}</b></span> : null}
        <span className="chip"><Link to={paths.project(job.project)}>{job.project}</Link> / {job.owner}</span>
        <span className="chip" title="Devices kept free for this job">spares <b>{job.spares.length === 0 ? "none" : job.spares.map((spare) => `${spare.node_name}:${spare.device_index}`).join(" ")}</b></span>
        <Id id={job.id} short={shortId(job.id)} />
      </div>
    </PageHead>
  );
}

/* What it does now, and below it what it has come to since it began: each a row of its own. */

function Figures({ job, settled }: { job: JobDetail; settled: boolean }): ReactElement {
  const final = FINAL.has(job.state);
  const short = job.replicas_active < job.replicas_total || fewer(job);
  /* Before the first step there is nothing to measure, which is no missing report. */
  const begun = job.committed_step > 0;
  return (
    <div className="stack-tight">
      <div className="progress-line">
        <Bar ratio={job.progress} tone={styleOf("job", job.state).tone} label="Progress" />
        <span>step <b>{count(job.committed_step)}</b> of {count(job.total_steps)} ({progress(job.progress)})</span>
      </div>
      <dl className="figures figures-job">
        {!begun || (final && job.loss === null) ? null : <Figure label={final ? "Last loss" : "Loss"} value={fixed(job.loss, 4)} />}
        {!begun || (final && job.step_time_s === null) ? null : <Figure label={final ? "Last step time" : "Step time"} value={duration(job.step_time_s)} />}
        {final ? <Figure label="Ended" value={job.finished_at ? <Time at={job.finished_at} /> : words(job.state)} /> : begun ? <Figure label="Time left" value={job.eta_s === null ? <span className="missing">{job.step_time_s === null ? "too few steps" : "no step is committed"}</span> : duration(job.eta_s)} /> : null}
        <Figure label="Replicas" value={job.attempt ? (final ? count(job.replicas_total) : `${job.replicas_active} / ${job.replicas_total}`) : <span className="missing">none placed yet</span>} tone={short && !final ? "warn" : undefined} note={job.attempt ? `${final ? "" : "contributing / "}${fewer(job) ? `placed, ${job.replicas_asked} asked for` : "wanted"}` : undefined} />
        {final || !begun ? null : <Figure label="Work at risk" value={duration(job.work_at_risk_s)} note={job.last_checkpoint_local ? `lost if all ranks failed now; ${duration(job.work_at_risk_stored_s)} if their nodes went too` : "lost if all failed now"} />}
        <Figure label="Last checkpoint" value={job.last_checkpoint_step === null ? "none yet" : `step ${count(job.last_checkpoint_step)}`} note={checkpointNote(job)} title="Age: since the newest good checkpoint in storage was committed, which outlives the nodes; of a job without one, since its first attempt began" />
      </dl>
      <dl className="figures figures-job">
        {begun ? <EffectiveTime job={job} /> : null}
        <Figure label="Restarts / evictions" value={`${job.restarts} / ${job.evictions}`} note={job.preemptions > 0 ? `preempted ${job.preemptions === 1 ? "once" : `${count(job.preemptions)} times`}, which is neither` : undefined} />
      </dl>
      <JobEngine job={job} />
      <Limits jobId={job.id} settled={settled} />
    </div>
  );
}

/** What automation may still do, and how long a step may last before it does. */
/* Where the newest lies, and how old the newest is that outlives the nodes. */
function checkpointNote(job: JobDetail): string | undefined {
  const age = job.checkpoint_age_s === null || FINAL.has(job.state) ? null : duration(Math.floor(job.checkpoint_age_s));
  const where = job.last_checkpoint_local ? "with the nodes alone" : null;
  const old = age === null ? null : job.last_checkpoint_step === null ? `${age} at work without one` : where ? `${age} without one in storage` : `${age} old`;
  return [where, old].filter((part) => part !== null).join(", ") || undefined;
}

function Limits({ jobId, settled }: { jobId: string; settled: boolean }): ReactElement | null {
  const budget = useQuery(queries.budget(jobId, settled)).data;
  const step = useQuery(queries.timeouts(jobId, settled)).data?.items.find((timeout) => timeout.section === "step");
  if (!budget || !step) return null;
  const rungs = Object.entries(budget.rungs).filter(([, number]) => number > 0).map(([rung, number]) => `${number} ${words(rung)}`).join(", ");
  // Limits of some kinds of restarts, where the job sets them.
  const kinds = [
    budget.max_attempt_restarts !== null ? `${budget.attempt_restarts} of ${budget.max_attempt_restarts} of the whole job` : "",
    budget.restarts_per_attempt !== null ? `${budget.restarts_in_attempt} of ${budget.restarts_per_attempt} of replicas in this attempt` : "",
    budget.program_restarts_per_window !== null ? `${budget.program_in_window} of ${budget.program_restarts_per_window} after the program ended by itself` : "",
  ].filter(Boolean).map((part) => `, ${part}`).join("");
  return (
    <p className="muted">
      Restart budget: <span title={rungs || "no restart of any rung so far"}>{budget.restarts_total} of {budget.max_restarts} spent, {budget.restarts_in_window} of {budget.restarts_per_window} within {duration(budget.window_s)}{kinds}</span>, {budget.no_progress_cycles} of {budget.max_no_progress} attempts without a newer checkpoint.
      {" "}A step may last {duration(step.value_s)} ({step.source === "learned" ? `learned from ${count(step.samples)} steps` : step.why || step.source}).
    </p>
  );
}

function Replicas(props: { job: JobDetail; final: boolean; settled: boolean; onEvict: (replica: Replica) => void; onLogs: (rank: Rank) => void }): ReactElement {
  const { job } = props;
  const replicas = useQuery(queries.replicas(job.id, props.settled));
  return (
    <Panel title="Replicas and ranks">
      <Loaded query={replicas} skeleton={<Skeleton height={160} />}>
        {(page) =>
          page.items.some((replica) => replica.current) ? (
            <>
              {props.final ? null : <SilentNodes nodes={nodesOf(page.items)} />}
              <ReplicaGrid jobId={job.id} project={job.project} replicas={page.items} asOfSeq={page.as_of_seq} committedStep={job.committed_step} onEvict={props.onEvict} onLogs={props.onLogs} />
            </>
          ) : (
            <Empty icon="hourglass" title={props.final ? "No replica is left" : "No replica has been started yet"}>{job.why}</Empty>
          )
        }
      </Loaded>
    </Panel>
  );
}

/** The nodes that the newest incarnations run on, each once. */
function nodesOf(replicas: Replica[]): { id: string; name: string }[] {
  const ranks = replicas.filter((replica) => replica.current).flatMap((replica) => replica.ranks);
  return [...new Map(ranks.map((rank) => [rank.node_id, rank.node_name]))].map(([id, name]) => ({ id, name }));
}

function History({ job, settled }: { job: JobDetail; settled: boolean }): ReactElement | null {
  const replicas = useQuery(queries.replicas(job.id, settled)).data?.items;
  const incidents = useInfiniteQuery(queries.jobIncidents(job.id, settled));
  const decisions = useInfiniteQuery(queries.jobDecisions(job.id, settled));
  const checkpoints = useInfiniteQuery(queries.checkpoints(job.id, settled));
  if (!replicas || replicas.length === 0) return null;
  const missing = [
    { query: incidents, many: "incidents" }, { query: decisions, many: "decisions" }, { query: checkpoints, many: "checkpoints" },
  ].filter(({ query }) => query.hasNextPage);
  const [shownIncidents, shownDecisions, shownCheckpoints] = [queries.whole(incidents.data), queries.whole(decisions.data), queries.whole(checkpoints.data)];
  return (
    <Lifeline
      replicas={replicas} incidents={shownIncidents.rows} decisions={shownDecisions.rows} checkpoints={shownCheckpoints.rows} startedAt={job.created_at} finishedAt={job.finished_at}
      older={missing.length === 0 ? null : { what: missing.map(({ many }) => many).join(" and "), read: () => missing.forEach(({ query }) => void query.fetchNextPage()) }}
    />
  );
}
