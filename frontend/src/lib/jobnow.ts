/* One step everywhere: a job's figures as of the newest step in the list that the charts draw, so
   that a snapshot read between two pushes puts no second step on the page. Before the first step of
   an attempt the snapshot stands. Pure; the age of the snapshot is an argument. */
import type { Job, Step } from "../api/types";
import { median } from "./median";

/** As the server counts it: the median of the last committed steps. */
const RECENT_STEPS = 20;
export const ENDED_STATES: ReadonlySet<string> = new Set(["succeeded", "failed", "cancelled"]);

/** The newest attempt was placed with fewer replicas than the job asked for. */
export const fewer = (job: Pick<Job, "replicas_asked" | "replicas_total">): boolean => job.replicas_asked > job.replicas_total;

/** How many steps are committed once this one is: a step's own number counts from 0. */
export const doneWith = (step: Step): number => step.step + 1;

/** Where a rank stands: its readings may be a second older than the newest committed step, which every
    rank of a contributing replica has taken part in. `least`: that step; 0 for those that do not contribute. */
export const rankStep = (reported: number, least: number): number => Math.max(reported, least);

/** `steps` in (attempt, step) order; `ageS`: seconds since `job` was read. */
export function jobNow<T extends Job>(job: T, steps: readonly Step[], ageS: number): T {
  if (ENDED_STATES.has(job.state)) return job;
  const aged = { ...job, checkpoint_age_s: job.checkpoint_age_s === null ? null : job.checkpoint_age_s + ageS };
  const last = steps[steps.length - 1];
  if (!last || last.attempt < (job.attempt ?? 0)) return aged;
  const recent = steps.slice(-RECENT_STEPS);
  const stepTimeS = median(recent.map((step) => step.step_time_s).filter((value): value is number => value !== null && value > 0)) ?? job.step_time_s;
  const done = doneWith(last);
  const atRisk = Math.max(0, done - (job.last_checkpoint_step ?? 0));
  return {
    ...aged,
    attempt: last.attempt,
    committed_step: done,
    progress: job.total_steps > 0 ? done / job.total_steps : job.progress,
    loss: recent.findLast((step) => step.loss !== null)?.loss ?? job.loss,
    step_time_s: stepTimeS,
    /* Null from the server: no step is committed any more. It stays so until there is one that it had not seen. */
    eta_s: stepTimeS === null || (job.eta_s === null && job.step_time_s !== null && done <= job.committed_step) ? job.eta_s : Math.max(0, job.total_steps - done) * stepTimeS,
    /* By what the server takes a step to last, as its decisions do. */
    work_at_risk_s: job.learned_step_s === null ? job.work_at_risk_s : atRisk * job.learned_step_s,
    work_at_risk_stored_s: job.learned_step_s === null ? job.work_at_risk_stored_s : Math.max(0, done - (job.stored_checkpoint_step ?? 0)) * job.learned_step_s,
  };
}
