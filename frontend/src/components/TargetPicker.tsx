/* Where a fault strikes: job, replica, rank, node, device; each choice narrows the next. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { type ReactElement, useEffect } from "react";
import { useFleet } from "../api/fleet";
import * as queries from "../api/queries";
import type { Target } from "../api/types";

export interface Pick {
  job: string;
  replica: string;
  rank: string;
  node: string;
  device: string;
}

export const EMPTY_PICK: Pick = { job: "", replica: "", rank: "", node: "", device: "" };

/** A rank needs its replica and job, a device its node. */
export function wanted(needs: readonly Target[]): Set<Target> {
  const all = new Set<Target>(needs);
  if (all.has("rank")) all.add("replica");
  if (all.has("replica")) all.add("job");
  if (all.has("device")) all.add("node");
  return all;
}

export function ready(needs: readonly Target[], pick: Pick): boolean {
  return [...wanted(needs)].every((target) => pick[target] !== "");
}

export function toBody(kind: string, needs: readonly Target[], pick: Pick, value: string): Record<string, unknown> {
  const want = wanted(needs);
  const body: Record<string, unknown> = { kind };
  if (want.has("job")) body["job_id"] = pick.job;
  if (want.has("replica")) body["replica"] = Number(pick.replica);
  if (want.has("rank")) body["rank"] = Number(pick.rank);
  if (want.has("node")) body["node_id"] = pick.node;
  if (want.has("device")) body["device_index"] = Number(pick.device);
  if (value.trim() !== "") body["value"] = Number.isNaN(Number(value)) ? value : Number(value);
  return body;
}

interface Option {
  value: string;
  text: string;
}

export function TargetPicker({ needs, pick, onPick }: { needs: readonly Target[]; pick: Pick; onPick: (pick: Pick) => void }): ReactElement {
  const want = wanted(needs);
  const jobs = useInfiniteQuery({ ...queries.jobs("running", ""), enabled: want.has("job") });
  const replicas = useQuery({ ...queries.incarnations(pick.job), enabled: pick.job !== "" && want.has("replica") });
  const chosen = useQuery({ ...queries.replica(pick.job, Number(pick.replica)), enabled: pick.job !== "" && pick.replica !== "" && want.has("rank") });
  const nodes = useFleet(want.has("node")).nodes ?? [];
  const current = replicas.data?.filter((replica) => replica.current) ?? [];
  const options: Record<Target, Option[]> = {
    job: jobs.data?.pages.flatMap((page) => page.items).map((job) => ({ value: job.id, text: job.name })) ?? [],
    replica: current.map((replica) => ({ value: String(replica.index), text: `replica ${replica.index} (${replica.state})` })),
    rank: (pick.replica === "" ? undefined : chosen.data?.items[0])?.ranks.map((rank) => ({ value: String(rank.rank), text: `rank ${rank.rank} on ${rank.node_name}` })) ?? [],
    node: nodes.map((node) => ({ value: node.id, text: `${node.name} (${node.ranks_running} ranks)` })),
    device: nodes.find((node) => node.id === pick.node)?.devices.map((device) => ({ value: String(device.index), text: `device ${device.index}${device.held_by ? " (busy)" : ""}` })) ?? [],
  };
  const order: Target[] = ["job", "replica", "rank", "node", "device"];
  return (
    <>
      {order.filter((target) => want.has(target)).map((target) => (
        <Choice key={target} target={target} options={options[target]} value={pick[target]} onChange={(value) => onPick(narrowed(pick, target, value))} />
      ))}
    </>
  );
}

/** Choosing anew above makes the choices below void. */
export function narrowed(pick: Pick, target: Target, value: string): Pick {
  const next = { ...pick, [target]: value };
  if (target === "job") next.replica = next.rank = "";
  if (target === "replica") next.rank = "";
  if (target === "node") next.device = "";
  return next;
}

function Choice({ target, options, value, onChange }: { target: Target; options: Option[]; value: string; onChange: (value: string) => void }): ReactElement {
  const only = options.length > 0 && !options.some((option) => option.value === value) ? options[0]!.value : null;
  useEffect(() => {
    if (only !== null) onChange(only);
  }, [only]); // eslint-disable-line react-hooks/exhaustive-deps
  return (
    <label className="field">
      <span>{target}</span>
      <select value={value} onChange={(event) => onChange(event.target.value)} disabled={options.length === 0}>
        {options.length === 0 ? <option value="">none to choose</option> : null}
        {options.map((option) => <option key={option.value} value={option.value}>{option.text}</option>)}
      </select>
    </label>
  );
}
