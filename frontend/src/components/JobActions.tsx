/* The acts a person may order on a job, each with its blast radius in words before it is sent. */
import type { ReactElement } from "react";
import { post } from "../api/client";
import type { JobDetail, Replica, Writable } from "../api/types";
import { count, duration } from "../lib/format";
import { ranksPerReplica } from "../lib/layout";
import { ConfirmDialog } from "../ui/dialog";

export type JobAct = { kind: "cancel" | "checkpoint" | "preempt" | "resume" } | { kind: "evict"; replica: Replica };

/** Those of the replicas that contribute; others of the attempt start, catch up or stand by, and have processes too. */
function ranksOf(job: JobDetail): string {
  const ranks = job.layout ? ranksPerReplica(job.layout) * job.replicas_total : 0;
  return `${job.replicas_active === job.replicas_total ? "" : "up to "}${count(ranks)}`;
}

type JobRequest = Extract<Writable, `/jobs/{job_id}:${"cancel" | "checkpoint" | "preempt" | "resume" | "evict-replica"}`>;

async function sendRequest(path: JobRequest, job: JobDetail, body: Record<string, unknown>): Promise<string> {
  return (await post(path, { job_id: job.id }, body)).detail;
}

export function JobActions({ job, act, onClose }: { job: JobDetail; act: JobAct; onClose: () => void }): ReactElement {
  switch (act.kind) {
    case "cancel":
      return (
        <ConfirmDialog
          title={`Cancel ${job.name}`} confirmLabel="Cancel the job" danger typeToConfirm={job.name} onClose={onClose}
          onConfirm={(reason) => sendRequest("/jobs/{job_id}:cancel", job, { reason })}
          blastRadius={<>Stops <b>{ranksOf(job)} ranks</b> for good and frees their devices. Its ranks have their grace period to save in; where they cannot, work since step {count(job.stored_checkpoint_step ?? 0)} ({duration(job.work_at_risk_stored_s)}) is lost.</>}
        />
      );
    case "checkpoint":
      return (
        <ConfirmDialog
          title="Checkpoint now" confirmLabel="Save at the next step" onClose={onClose}
          onConfirm={(reason) => sendRequest("/jobs/{job_id}:checkpoint", job, { reason })}
          blastRadius={<>All <b>{ranksOf(job)} ranks</b> save at the next step boundary. Training stands still for as long as a save blocks; nothing is stopped.</>}
        />
      );
    case "preempt":
      return (
        <ConfirmDialog
          title={`Preempt ${job.name}`} confirmLabel="Save and yield the devices" danger onClose={onClose}
          onConfirm={(reason) => sendRequest("/jobs/{job_id}:preempt", job, { reason })}
          blastRadius={<>All <b>{ranksOf(job)} ranks</b> save, then end and free their devices. Where no save is committed within their grace, work since step {count(job.stored_checkpoint_step ?? 0)} ({duration(job.work_at_risk_stored_s)}) is lost. The job waits until somebody resumes it; the restart budget pays for none of it.</>}
        />
      );
    case "resume":
      return (
        <ConfirmDialog
          title={`Resume ${job.name}`} confirmLabel="Resume" onClose={onClose}
          onConfirm={(reason) => sendRequest("/jobs/{job_id}:resume", job, { reason })}
          blastRadius={<>It is in the queue again by its priority and age, and continues from the checkpoint of step {count(job.last_checkpoint_step ?? 0)} when there is room. Nothing that runs is stopped by this.</>}
        />
      );
    case "evict": {
      const left = job.replicas_active - 1;
      const { replica } = act;
      return (
        <ConfirmDialog
          title={`Evict replica ${replica.index}`} confirmLabel={`Evict replica ${replica.index}`} danger onClose={onClose}
          onConfirm={(reason) => sendRequest("/jobs/{job_id}:evict-replica", job, { replica: replica.index, reason })}
          blastRadius={<>Replica {replica.index} trains on until another has caught up beside it and takes its place. Where too few devices are free for that, or it was evicted once already, its <b>{replica.ranks.length} ranks</b> on {[...new Set(replica.ranks.map((rank) => rank.node_name))].join(", ")} leave the next view and end when the other {left === 1 ? "replica has" : `${left} replicas have`} trained a step without them, with the same global batch; a replacement is started where devices are free. No committed step is lost; the restart budget pays for none of it.</>}
        />
      );
    }
    default:
      return <></>;
  }
}
