/* One exhaustive record of how every state looks: shape, word, tone and meaning. The compiler
   refuses a state without a style; an unknown word from a newer server still shows, as itself. */
import type { ReactElement } from "react";
import type {
  AttemptState, CheckpointState, CommandState, IncidentState, JobState, NodeState, RankState, ReplicaState,
} from "../api/types";
import type { IncidentOutcome } from "../api/types";
import { words } from "../lib/format";
import { Icon, type IconName } from "./icons";

export type Tone = "ok" | "info" | "warn" | "bad" | "idle" | "special";

export interface StateStyle {
  icon: IconName;
  tone: Tone;
  meaning: string;
}

const style = (icon: IconName, tone: Tone, meaning: string): StateStyle => ({ icon, tone, meaning });

const JOB: Record<JobState, StateStyle> = {
  pending: style("hourglass", "idle", "waits for devices"),
  starting: style("send", "info", "its processes are being started"),
  running: style("play", "ok", "training; steps are being committed"),
  recovering: style("cycle", "warn", "recovering from a fault"),
  preempted: style("hourglass", "warn", "saved, and its devices were given away; it waits to resume"),
  resuming: style("send", "info", "placed again; its ranks load the checkpoint that it was preempted at"),
  succeeded: style("check", "ok", "all steps are committed"),
  failed: style("cross", "bad", "it ended without reaching its last step"),
  cancelled: style("ban", "idle", "a person stopped it"),
};

const REPLICA: Record<ReplicaState, StateStyle> = {
  forming: style("hourglass", "info", "its processes are starting"),
  active: style("play", "ok", "contributes gradients to each step"),
  suspect: style("question", "warn", "a fault is suspected and being confirmed"),
  evicted: style("cross", "bad", "left out of the view; its processes are fenced"),
  catching_up: style("down", "special", "fetches a snapshot and replays; survivors do not wait"),
  spare: style("ring", "idle", "ready to be promoted"),
  ended: style("dash", "idle", "its attempt is over"),
};

const RANK: Record<RankState, StateStyle> = {
  launching: style("send", "info", "the process is being started"),
  initializing: style("hourglass", "info", "building the model"),
  training: style("play", "ok", "running steps"),
  checkpointing: style("disk", "info", "writing its shard"),
  exited: style("dash", "idle", "the process has ended"),
  hung: style("alert", "bad", "no progress within its section's timeout"),
};

const NODE: Record<NodeState, StateStyle> = {
  ready: style("check", "ok", "may receive work"),
  degraded: style("alert", "warn", "works, with a finding"),
  draining: style("hourglass", "info", "receives no new work; what runs there is moved away"),
  cordoned: style("ban", "idle", "receives no new work"),
  quarantined: style("shield", "bad", "receives no work; its reason says what it waits for"),
};

const COMMAND: Record<CommandState, StateStyle> = {
  queued: style("hourglass", "idle", "committed, not delivered yet"),
  delivered: style("send", "info", "sent to the agent"),
  acknowledged: style("eye", "info", "the agent has journaled it"),
  succeeded: style("check", "ok", "done"),
  failed: style("cross", "bad", "the agent could not do it"),
  expired: style("dash", "warn", "expired before the agent carried it out"),
  superseded: style("ban", "idle", "replaced by a newer decision"),
};

const CHECKPOINT: Record<CheckpointState, StateStyle> = {
  writing: style("hourglass", "info", "being written"),
  complete: style("check", "ok", "the commit marker is written"),
  verified: style("shield", "ok", "read back and compared"),
  restore_tested: style("shield", "ok", "loaded once, for proof"),
  replicated: style("copy", "ok", "exists in a second place"),
  corrupt: style("cross", "bad", "never resumed from"),
  pruned: style("dash", "idle", "removed by retention"),
};

const INCIDENT: Record<IncidentState, StateStyle> = {
  open: style("alert", "bad", "being investigated"),
  recovering: style("cycle", "warn", "decided; being carried out"),
  mitigated: style("wrench", "warn", "no longer at risk; the hardware needs a person"),
  resolved: style("dash", "idle", "over; its outcome says how it ended"),
};

const OUTCOME: Record<IncidentOutcome, StateStyle> = {
  recovered: style("check", "ok", "everything is as it was before"),
  mitigated: style("alert", "warn", "continues with fewer resources, or a person is handling the hardware"),
  lost: style("cross", "bad", "the job failed"),
  withdrawn: style("ban", "idle", "the job was cancelled before the outcome was known"),
};

const ATTEMPT: Record<AttemptState, StateStyle> = {
  starting: style("send", "info", "being launched"),
  running: style("play", "ok", "running"),
  stopping: style("hourglass", "warn", "being stopped"),
  ended: style("dash", "idle", "over"),
};

export const STYLES = {
  job: JOB, replica: REPLICA, rank: RANK, node: NODE, command: COMMAND, checkpoint: CHECKPOINT, incident: INCIDENT, outcome: OUTCOME, attempt: ATTEMPT,
} as const;

export type Kind = keyof typeof STYLES;

export function styleOf(kind: Kind, state: string): StateStyle {
  const record = STYLES[kind] as Record<string, StateStyle>;
  return record[state] ?? style("question", "idle", "a state this page does not know");
}

/** Shape + word + colour. `detail` is added to the tooltip. */
export function StateBadge({ kind, state, detail, compact }: { kind: Kind; state: string; detail?: string; compact?: boolean }): ReactElement {
  const { icon, tone, meaning } = styleOf(kind, state);
  return (
    <span className={`badge tone-${tone}${compact ? " badge-compact" : ""}`} title={detail ? `${meaning}; ${detail}` : meaning}>
      <Icon name={icon} size={13} />
      <span>{words(state)}</span>
    </span>
  );
}
