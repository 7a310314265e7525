/* What went wrong and what was decided about it: incidents, decisions, certificates.
   The same rules as in types.ts: units last, null is "not reported", ISO-8601 UTC. */

import type { Command, EventItem, IncidentState, Scalar, Signal } from "./types";

export interface Alternative {
  action: string;
  cost_gpu_s: number | null;
  why_not: string;
}

export interface Decision {
  id: string;
  job_id: string;
  incident_id: string | null;
  at: string;
  rule: string;
  choice: string;
  reason_code: string;
  sentence: string;
  evidence: Record<string, Scalar>;
  alternatives: Alternative[];
  actions: ({ action: string } & Record<string, unknown>)[];
  cost_gpu_s: number | null;
  routine: boolean;
  mode: string;
  applied: boolean;
  epoch_before: number;
  epoch_after: number;
  policy_version: string;
  decide_s: number | null;
  commands?: Command[];
}

export interface Check {
  name: string;
  ok: boolean | null;
  detail: string;
  value: number | string | null;
  limit: number | string | null;
}

export interface Certificate {
  state: "pending" | "green" | "red";
  step: number | null;
  checks: Check[];
  generated_at: string | null;
}

export interface IncidentPhase {
  name: string;
  at: string;
  since_fault_s: number | null;
}

export interface Incident {
  id: string;
  job_id: string | null;
  job_name: string | null;
  node_id: string | null;
  title: string;
  state: IncidentState;
  opened_at: string;
  resolved_at: string | null;
  outcome: string;
  phases: IncidentPhase[];
  certificate: Certificate | null;
}

export interface IncidentDetail extends Incident {
  as_of_seq: number;
  signals: Signal[];
  decisions: Decision[];
  stacks: { rank: number | string; method: string; text: string }[];
  events: EventItem[];
}
