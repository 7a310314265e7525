/* One exhaustive record of how every state looks: shape, word, tone and meaning. The compiler
   refuses a state without a look; an unknown word from a newer server still shows, as itself. */
import type { ReactElement } from "react";
import type {
  AttemptState, CheckpointState, CommandState, IncidentState, JobState, NodeState, RankState, ReplicaState,
} from "../api/types";
import type { IncidentOutcome } from "../api/types";
import { words } from "../lib/format";
import { Icon, type IconName } from "./icons";

export type Tone = "ok" | "info" | "warn" | "bad" | "idle" | "special";

export interface Look {
  icon: IconName;
  tone: Tone;
  meaning: string;
}

const look = (icon: IconName, tone: Tone, meaning: string): Look => ({ icon, tone, meaning });

const JOB: Record<JobState, Look> = {
  pending: look("hourglass", "idle", "waits for devices"),
  starting: look("send", "info", "its processes are being started"),
  running: look("play", "ok", "training; steps are being committed"),
  recovering: look("cycle", "warn", "a fault is being dealt with"),
  succeeded: look("check", "ok", "all steps are committed"),
  failed: look("cross", "bad", "it ended without reaching its last step"),
  cancelled: look("ban", "idle", "a person stopped it"),
};

const REPLICA: Record<ReplicaState, Look> = {
  forming: look("hourglass", "info", "its processes are starting"),
  active: look("play", "ok", "contributes gradients to each step"),
  suspect: look("question", "warn", "something looks wrong; being confirmed"),
  evicted: look("cross", "bad", "left out of the view; its processes are fenced"),
  catching_up: look("down", "special", "fetches a snapshot and replays; survivors do not wait"),
  spare: look("ring", "idle", "ready to be promoted"),
  ended: look("dash", "idle", "its attempt is over"),
};

const RANK: Record<RankState, Look> = {
  launching: look("send", "info", "the process is being started"),
  initializing: look("hourglass", "info", "building the model"),
  training: look("play", "ok", "running steps"),
  checkpointing: look("disk", "info", "writing its shard"),
  exited: look("dash", "idle", "the process has ended"),
  hung: look("alert", "bad", "no progress within its section's timeout"),
};

const NODE: Record<NodeState, Look> = {
  ready: look("check", "ok", "may receive work"),
  degraded: look("alert", "warn", "works, with a finding"),
  draining: look("hourglass", "info", "receives no new work; what runs there is moved away"),
  cordoned: look("ban", "idle", "receives no new work"),
  quarantined: look("shield", "bad", "kept away from work; its reason says what it waits for"),
};

const COMMAND: Record<CommandState, Look> = {
  queued: look("hourglass", "idle", "committed, not delivered yet"),
  delivered: look("send", "info", "sent to the agent"),
  acknowledged: look("eye", "info", "the agent has journaled it"),
  succeeded: look("check", "ok", "done"),
  failed: look("cross", "bad", "the agent could not do it"),
  expired: look("dash", "warn", "its time passed before it was done"),
  superseded: look("ban", "idle", "a newer decision made it moot"),
};

const CHECKPOINT: Record<CheckpointState, Look> = {
  writing: look("hourglass", "info", "being written"),
  complete: look("check", "ok", "the commit marker is written"),
  verified: look("shield", "ok", "read back and compared"),
  restore_tested: look("shield", "ok", "loaded once, for proof"),
  replicated: look("copy", "ok", "exists in a second place"),
  corrupt: look("cross", "bad", "never resumed from"),
  pruned: look("dash", "idle", "removed by retention"),
};

const INCIDENT: Record<IncidentState, Look> = {
  open: look("alert", "bad", "being investigated"),
  recovering: look("cycle", "warn", "decided; being carried out"),
  mitigated: look("wrench", "warn", "nothing is at risk any more; a person has hardware to see to"),
  resolved: look("dash", "idle", "over; its outcome says how it ended"),
};

const OUTCOME: Record<IncidentOutcome, Look> = {
  recovered: look("check", "ok", "everything is as it was before"),
  mitigated: look("alert", "warn", "it goes on with less, or a person has the hardware now"),
  lost: look("cross", "bad", "the job failed"),
  withdrawn: look("ban", "idle", "its user ended the job before that could be told"),
};

const ATTEMPT: Record<AttemptState, Look> = {
  starting: look("send", "info", "being launched"),
  running: look("play", "ok", "running"),
  stopping: look("hourglass", "warn", "being stopped"),
  ended: look("dash", "idle", "over"),
};

export const LOOKS = {
  job: JOB, replica: REPLICA, rank: RANK, node: NODE, command: COMMAND, checkpoint: CHECKPOINT, incident: INCIDENT, outcome: OUTCOME, attempt: ATTEMPT,
} as const;

export type Kind = keyof typeof LOOKS;

export function lookOf(kind: Kind, state: string): Look {
  const record = LOOKS[kind] as Record<string, Look>;
  return record[state] ?? look("question", "idle", "a state this page does not know");
}

/** Shape + word + colour. `detail` is added to the tooltip. */
export function StateBadge({ kind, state, detail, compact }: { kind: Kind; state: string; detail?: string; compact?: boolean }): ReactElement {
  const { icon, tone, meaning } = lookOf(kind, state);
  return (
    <span className={`badge tone-${tone}${compact ? " badge-compact" : ""}`} title={detail ? `${meaning}; ${detail}` : meaning}>
      <Icon name={icon} size={13} />
      <span>{words(state)}</span>
    </span>
  );
}
