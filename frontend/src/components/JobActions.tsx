/* The acts a person may order on a job, each with its blast radius in words before it is sent. */
import type { ReactElement } from "react";
import { post } from "../api/client";
import type { Accepted, JobDetail, Replica } from "../api/types";
import { count, duration } from "../lib/format";
import { ranksPerReplica } from "../lib/layout";
import { ConfirmDialog } from "../ui/dialog";

export type JobAct = { kind: "cancel" } | { kind: "checkpoint" } | { kind: "evict"; replica: Replica };

const ranksOf = (job: JobDetail): number =>
  job.layout ? ranksPerReplica(job.layout) * job.replicas_active : 0;

async function order(path: string, body: Record<string, unknown>): Promise<string> {
  const accepted = await post<Accepted>(path, body);
  return accepted.detail ?? "Accepted; it is carried out by the next decision.";
}

export function JobActions({ job, act, onClose }: { job: JobDetail; act: JobAct; onClose: () => void }): ReactElement {
  switch (act.kind) {
    case "cancel":
      return (
        <ConfirmDialog
          title={`Cancel ${job.name}`} confirmLabel="Cancel the job" danger typeToConfirm={job.name} onClose={onClose}
          onConfirm={(reason) => order(`/jobs/${job.id}:cancel`, { reason })}
          blastRadius={<>Stops <b>{count(ranksOf(job))} ranks</b> of {job.replicas_active} replicas for good and frees their devices. Work since step {count(job.last_checkpoint_step ?? 0)} ({duration(job.work_at_risk_s)}) is lost unless a checkpoint is taken first.</>}
        />
      );
    case "checkpoint":
      return (
        <ConfirmDialog
          title="Checkpoint now" confirmLabel="Save at the next step" onClose={onClose}
          onConfirm={(reason) => order(`/jobs/${job.id}:checkpoint`, { reason })}
          blastRadius={<>All <b>{count(ranksOf(job))} ranks</b> save at the next step boundary. Training stands still for as long as a save blocks; nothing is stopped.</>}
        />
      );
    case "evict": {
      const left = job.replicas_active - 1;
      const { replica } = act;
      return (
        <ConfirmDialog
          title={`Evict replica ${replica.index}`} confirmLabel={`Evict replica ${replica.index}`} danger onClose={onClose}
          onConfirm={(reason) => order(`/jobs/${job.id}:evict-replica`, { replica: replica.index, reason })}
          blastRadius={<>Kills <b>{replica.ranks.length} ranks</b> of replica {replica.index} on {[...new Set(replica.ranks.map((rank) => rank.node_name))].join(", ")}. The other {left} {left === 1 ? "replica goes" : "replicas go"} on with the same global batch; no committed step is lost. A replacement is started where devices are free; the restart budget pays for none of it.</>}
        />
      );
    }
    default:
      return <></>;
  }
}
