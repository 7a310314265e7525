/* The first page's answer: everything at one glance. The rules of types.ts hold. */

import type { Decision, Incident } from "./incidents";
import type { Health, JobState, NodeState } from "./types";

export interface Overview {
  as_of_seq: number;
  now: string;
  jobs: Partial<Record<JobState, number>>;
  nodes: Partial<Record<NodeState, number>>;
  devices: { total: number; healthy: number; at_risk: number; lost: number; busy: number; spare: number };
  open_incidents: number;
  decisions_last_hour: number;
  goodput_24h: number | null;
  recent_incidents: Incident[];
  recent_decisions: Decision[];
  health: Health;
}
