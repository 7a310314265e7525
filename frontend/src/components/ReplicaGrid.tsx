/* Every replica and its ranks, live: section, phase, step, heartbeat age, device, process. The
   newest incarnation of each slot is shown; earlier ones are in the lifeline. */
import { memo, type ReactElement } from "react";
import { Link } from "react-router";
import type { Rank, RankLive, RankSpeed, Replica } from "../api/types";
import { useNow } from "../lib/clock";
import { count, duration, MISSING, percent, quantity, words } from "../lib/format";
import { paths } from "../lib/paths";
import { useLive, usePatched } from "../live/hooks";
import { type Heard, type Hearing, rankHeard } from "../lib/heard";
import { rankStep } from "../lib/jobnow";
import { rankKey } from "../live/reducer";
import { StateBadge } from "../ui/states";
import { ActButton } from "../ui/ActButton";
import { Scroll } from "../ui/Scroll";

interface GridProps {
  jobId: string;
  project: string;
  replicas: Replica[];
  asOfSeq: number;
  /** Steps that the job has committed: a contributing replica stands there too. */
  committedStep: number;
  onEvict: (replica: Replica) => void;
  onLogs: (rank: Rank) => void;
}

/** What of a catch-up is worth a line; the rest is on the incident's timeline. */
const CAUGHT_UP_SHOWN = ["donor", "step", "fetch_bytes", "fetch_s", "replayed_steps"];

export function ReplicaGrid({ jobId, project, replicas, asOfSeq, committedStep, onEvict, onLogs }: GridProps): ReactElement {
  const current = replicas.filter((replica) => replica.current).sort((a, b) => a.index - b.index);
  return (
    <div className="replicas">
      {current.map((replica) => <ReplicaCard key={replica.id} jobId={jobId} project={project} replica={replica} asOfSeq={asOfSeq} committedStep={committedStep} onEvict={onEvict} onLogs={onLogs} />)}
    </div>
  );
}

const ReplicaCard = memo(function ReplicaCard(props: Omit<GridProps, "replicas"> & { replica: Replica }): ReactElement {
  const replica = usePatched("replica", props.replica, props.asOfSeq) ?? props.replica;
  const ranks = props.replica.ranks;
  return (
    <article className="replica" aria-label={`Replica ${replica.index}`}>
      <header className="replica-head">
        <h3>Replica {replica.index}</h3>
        <StateBadge kind="replica" state={replica.state} />
        <span className="chip" title="How many times this slot has been started">incarnation <b>{replica.incarnation}</b></span>
        <span className="chip">step <b>{count(replica.contributing ? props.committedStep : replica.committed_step)}</b></span>
        {replica.contributing ? null : <span className="chip" title="Its gradients are not part of the sum">not contributing</span>}
        <ActButton does="/jobs/{job_id}:evict-replica" of={replica} project={props.project} className="danger small" label={`Evict replica ${replica.index}`} onPress={() => props.onEvict(replica)}>Evict</ActButton>
      </header>
      {replica.caught_up ? <p className="replica-note muted">Caught up: {CAUGHT_UP_SHOWN.filter((key) => key in replica.caught_up!).map((key) => quantity(key, replica.caught_up![key])).map(({ name, text }) => `${name} ${text}`).join(", ")}</p> : null}
      <Scroll label="Ranks">
        <table className="ranks">
          <thead><tr><th>Rank</th><th>State</th><th>Section / phase</th><th className="num">Step</th><th className="num" title="How long ago the last one came">Heartbeat</th><th className="num" title="Own work on one micro-batch, against the median of the other ranks of its stage and its own best">Speed</th><th>Device</th><th>Process</th></tr></thead>
          <tbody>{ranks.map((rank) => <RankRow key={rank.id} jobId={props.jobId} rank={rank} leastStep={replica.contributing ? props.committedStep : 0} asOfSeq={props.asOfSeq} onLogs={props.onLogs} />)}</tbody>
        </table>
      </Scroll>
    </article>
  );
});

const STARTING = new Set<string>(["launching", "initializing"]);

function useRankLive(jobId: string, rank: Rank): { now: RankLive | null; heard: Heard } {
  const entry = useLive((state) => state.data.ranks.get(jobId)?.byRank.get(rankKey(rank.replica, rank.incarnation, rank.rank)));
  const received = useLive((state) => state.data.ranks.get(jobId)?.receivedMs ?? null);
  const linked = useLive((state) => state.link === "live" || state.link === "paused");
  const clock = useNow();
  const now = entry ?? rank.live;
  /* Between pushes the age goes on growing: a silent server must not freeze a healthy-looking number. */
  const since = entry && received !== null ? Math.max(0, (clock - received) / 1000) : 0;
  return { now, heard: rankHeard(now?.silent_s ?? null, since, linked, STARTING.has(rank.state)) };
}

const BEAT: Record<Hearing, { className: string; title: string }> = {
  ok: { className: "", title: "" },
  warn: { className: "text-warn", title: "later than a heartbeat should be" },
  bad: { className: "text-bad", title: "no heartbeat came" },
  stale: { className: "muted", title: "this page has no link to the control plane, so it is not known whether the rank is alive" },
};

function RankRow({ jobId, rank: snapshot, leastStep, asOfSeq, onLogs }: { jobId: string; rank: Rank; leastStep: number; asOfSeq: number; onLogs: (rank: Rank) => void }): ReactElement {
  const rank = usePatched("rank", snapshot, asOfSeq) ?? snapshot;
  const { now, heard } = useRankLive(jobId, rank);
  const speed = snapshot.speed ?? null;
  const alive = rank.exit_code === null && rank.exit_signal === null && rank.state !== "exited";
  const beat = BEAT[alive && heard.ageS !== null ? heard.hearing : "ok"];
  return (
    <tr>
      <td className="nowrap"><b>{rank.rank}</b> <span className="muted">tp{rank.tp} pp{rank.pp}{rank.cp > 0 ? ` cp${rank.cp}` : ""}</span></td>
      <td><StateBadge kind="rank" state={rank.state} compact detail={exitText(rank)} />{exitText(rank) ? <div className="muted">{exitText(rank)}</div> : null}</td>
      <td>{alive && now ? <><span className="nowrap">{words(now.section)}</span> <span className="muted nowrap">{words(now.phase)} {duration(now.phase_age_s)}</span></> : <span className="muted">-</span>}</td>
      <td className="num">{now ? count(rankStep(now.step, leastStep)) : alive ? <span className="missing">{MISSING}</span> : <span className="muted">-</span>}</td>
      <td className={`num ${beat.className}`} title={beat.title || undefined}>{!alive ? <span className="muted">ended</span> : heard.ageS === null ? <span className="missing">{MISSING}</span> : duration(heard.ageS)}</td>
      <td className="num">{alive && speed ? <span className={speed.straggler ? "text-warn" : ""} title={speedTitle(speed)}>{slowest(speed) === null ? <span className="muted">no score yet</span> : percent(slowest(speed))}{speed.straggler ? ` slow ${speed.cause}` : ""}</span> : <span className="muted" title={MISSING}>-</span>}</td>
      <td><Link className="nowrap" to={paths.node(rank.node_id)}>{rank.node_name}</Link> <span className="muted nowrap">gpu {rank.device_index}</span></td>
      <td className="nowrap">{rank.pid ?? <span className="muted">-</span>} <button type="button" className="link" onClick={() => onLogs(rank)} aria-label={`Log of rank ${rank.rank} of replica ${rank.replica}`}>log</button></td>
    </tr>
  );
}

/** Null before it was scored. */
export function slowest(speed: Pick<RankSpeed, "relative" | "individual">): number | null {
  const scores = [speed.relative, speed.individual].filter((score): score is number => score !== null);
  return scores.length > 0 ? Math.min(...scores) : null;
}

function speedTitle(speed: RankSpeed): string {
  const against = [speed.relative === null ? null : `${percent(speed.relative)} of the median of the others of its stage`, speed.individual === null ? null : `${percent(speed.individual)} of its own best`];
  return `${against.filter(Boolean).join(", ") || "no score yet"}; one micro-batch: compute ${duration(speed.compute_s)}, data ${duration(speed.data_s)}`;
}

export function exitText(rank: Pick<Rank, "exit_code" | "exit_signal">): string {
  if (rank.exit_signal !== null) return `signal ${rank.exit_signal}${rank.exit_signal === 9 ? " (SIGKILL)" : ""}`;
  return rank.exit_code !== null ? `exit code ${rank.exit_code}` : "";
}
