/* What the HTTP API answers, by the names it uses. Quantities carry their unit last;
   null is "not reported" and is never shown as 0. Times are ISO-8601 UTC strings. */

export type JobState =
  | "pending" | "starting" | "running" | "recovering" | "preempted" | "succeeded" | "failed" | "cancelled";
export type ReplicaState = "forming" | "active" | "suspect" | "evicted" | "catching_up" | "spare";
export type RankState = "launching" | "initializing" | "training" | "checkpointing" | "exited" | "hung" | "lost";
export type NodeState = "ready" | "degraded" | "cordoned" | "draining" | "quarantined" | "validating" | "lost";
export type CommandState =
  | "queued" | "delivered" | "acknowledged" | "succeeded" | "failed" | "expired" | "superseded";
export type CheckpointState = "writing" | "complete" | "verified" | "restore_tested" | "replicated" | "corrupt" | "pruned";
export type IncidentState = "open" | "recovering" | "resolved";
export type AttemptState = "starting" | "running" | "stopping" | "ended";
export type Scalar = string | number | boolean | null;

export interface Page<T> {
  items: T[];
  next: string | null;
  as_of_seq: number;
}

export interface Me {
  username: string;
  roles: string[];
  demo: boolean;
  csrf?: string;
}

export interface HealthPart {
  ok: boolean;
  detail: string;
  beat_age_s?: number | null;
}

export interface Health {
  database: HealthPart;
  redis: HealthPart;
  sentinel: HealthPart;
  worker: HealthPart;
  agents_connected: number;
  agents_total: number;
  outbox_pending: number;
  outbox_oldest_s: number | null;
  mode: string;
  dead_letters: number;
}

export interface Job {
  id: string;
  name: string;
  project: string;
  owner: string;
  state: JobState;
  state_reason: string;
  state_since: string;
  priority: number;
  epoch: number;
  committed_step: number;
  total_steps: number;
  progress: number;
  step_time_s: number | null;
  loss: number | null;
  eta_s: number | null;
  attempt: number | null;
  restarts: number;
  evictions: number;
  replicas_active: number;
  replicas_total: number;
  last_checkpoint_step: number | null;
  last_checkpoint_age_s: number | null;
  work_at_risk_s: number | null;
  ettr: number | null;
  open_incident_id: string | null;
  created_at: string;
  finished_at: string | null;
}

export type Layout = Record<"tp" | "pp" | "vp" | "cp" | "ep" | "replica_dp", number> & { dp: number | string };

export interface Attempt {
  number: number;
  state: AttemptState;
  layout: Layout;
  replicas: number;
  resume_step: number;
  started_at: string;
  ended_at: string | null;
  end_reason: string;
}

export interface JobDetail extends Job {
  as_of_seq: number;
  spec: unknown;
  layout: Layout | null;
  attempts: Attempt[];
  spares: { node_id: string; node_name: string; device_index: number }[];
  why: string;
}

export interface RankLive {
  section: string;
  phase: string;
  step: number;
  phase_age_s: number | null;
  silent_s: number | null;
  at?: string;
}

/** Scores 0..1: 1 is as fast as the fastest rank of the stage, or as the rank's own best. */
export interface RankSpeed {
  relative: number | null;
  individual: number | null;
  straggler: string;
  cause: string;
  compute_s: number;
  data_s: number;
  exchange_s: number;
  optimizer_s: number;
  steps: number;
  at: string;
}

/** What is spent of the restart budget, over every rung of the ladder. */
export interface Budget {
  max_restarts: number;
  restarts_total: number;
  restarts_per_window: number;
  restarts_in_window: number;
  window_s: number;
  max_no_progress: number;
  no_progress_cycles: number;
  rungs: Record<string, number>;
}

export interface SectionTimeout {
  section: string;
  value_s: number;
  source: string;
  samples: number;
  longest_s: number | null;
  why: string;
}

export interface Rank {
  id: string;
  replica: number;
  incarnation: number;
  rank: number;
  global_rank: number | null;
  tp: number;
  pp: number;
  cp: number;
  node_id: string;
  node_name: string;
  device_index: number;
  device_uuid: string;
  state: RankState;
  pid: number | null;
  started_at: string | null;
  joined_at: string | null;
  exit_code: number | null;
  exit_signal: number | null;
  live: RankLive | null;
  speed?: RankSpeed | null;
  job_id?: string;
}

export interface Replica {
  id: string;
  attempt: number;
  index: number;
  incarnation: number;
  state: ReplicaState;
  state_since: string;
  contributing: boolean;
  committed_step: number;
  caught_up: Record<string, Scalar> | null;
  current: boolean;
  created_at?: string | null;
  ranks: Rank[];
}

export interface Step {
  attempt: number;
  step: number;
  epoch: number;
  at: string;
  loss: number | null;
  grad_norm: number | null;
  step_time_s: number | null;
  exchange_s: number | null;
  stall_s: number | null;
  tokens: number;
  contributors: number;
  samples_exact: boolean | null;
  hashes_equal: boolean | null;
}

export interface EventItem {
  seq: number;
  at: string;
  kind: string;
  sentence: string;
  job_id: string | null;
  job_seq?: number | null;
  node_id: string | null;
  entity: string;
  entity_id: string;
  patch?: Record<string, unknown> | null;
  data?: Record<string, unknown> | null;
}

export interface Command {
  id: string;
  node_id: string;
  node_name: string;
  kind: string;
  state: CommandState;
  epoch: number;
  created_at: string;
  delivered_at: string | null;
  acknowledged_at: string | null;
  finished_at: string | null;
  deliveries: number;
  detail: unknown;
}

export interface Signal {
  id: string;
  kind: string;
  job_id: string | null;
  node_id: string | null;
  node_name: string | null;
  replica: number | null;
  incarnation: number | null;
  rank: number | null;
  device_index: number | null;
  value: number | null;
  threshold: number | null;
  evidence: Record<string, Scalar>;
  seen_at: string;
  settled_at: string | null;
}

export interface Checkpoint {
  id: string;
  job_id: string;
  attempt: number;
  step: number;
  epoch: number;
  path: string;
  kind: string;
  state: CheckpointState;
  state_reason: string;
  bytes: number | null;
  blocking_s: number | null;
  total_s: number | null;
  started_at: string;
  committed_at: string | null;
}

export interface DeviceLive {
  index: number;
  present?: boolean;
  temperature_c?: number | null;
  power_w?: number | null;
  power_limit_w?: number | null;
  utilization_ratio?: number | null;
  memory_used_bytes?: number | null;
  sm_clock_mhz?: number | null;
  risk?: number | null;
}

export interface Device {
  id: string;
  node_id: string;
  index: number;
  uuid: string;
  model: string;
  memory_bytes: number | null;
  driver: string;
  present: boolean;
  healthy: boolean;
  health_reason: string;
  risk: number | null;
  held_by: { job_id: string; replica: number; rank: number } | null;
  spare_for: string | null;
  live: DeviceLive | null;
}

export interface Node {
  id: string;
  name: string;
  state: NodeState;
  state_reason: string;
  state_since: string;
  connected: boolean;
  last_seen_age_s: number | null;
  agent_version: string;
  segment: string;
  devices: Device[];
  ranks_running: number;
  agent_cpu_ratio: number | null;
  agent_rss_bytes: number | null;
}

export interface NodeDetail extends Node {
  as_of_seq: number;
  signals: Signal[];
  ranks: Rank[];
  events: EventItem[];
  /** Events of its agent that could not be applied and wait for a replay. */
  dead_letters: number;
}

export interface DeadLetter {
  id: string;
  node_id: string;
  journal_id: string;
  seq: number;
  kind: string;
  size_bytes: number;
  reason: string;
  tries: number;
  happened_at: string;
  first_seen_at: string;
  last_seen_at: string;
  state: "waiting" | "replayed" | "discarded";
}

export interface DeviceSeries {
  index: number;
  t: number[];
  temperature_c: (number | null)[];
  power_w: (number | null)[];
  utilization_ratio: (number | null)[];
  memory_used_bytes: (number | null)[];
  sm_clock_mhz: (number | null)[];
  risk: (number | null)[];
}

export type Target = "job" | "replica" | "rank" | "node" | "device";

export interface FaultKind {
  kind: string;
  title: string;
  description: string;
  needs: Target[];
}

export interface Accepted {
  detail?: string;
  decision_id?: string | null;
  command_ids?: string[];
}

export interface SpecFault {
  pointer: string;
  message: string;
  fix?: string;
}

export interface DryRun {
  spec: unknown;
  defaults: string[];
  placement: unknown[] | null;
  faults: SpecFault[];
}
