/* Query keys and fetchers, one per resource. The live socket pushes changes; `POLL_MS` is the
   slow net under it, since nothing may rely on a push arriving. */
import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { get } from "./client";
import type { Decision, Incident, IncidentDetail } from "./incidents";
import type { Overview } from "./overview";
import type * as t from "./types";

export const POLL_MS = 15_000;
const PAGE = 200;

export const keys = {
  me: ["me"] as const,
  overview: ["overview"] as const,
  jobs: ["jobs"] as const,
  job: (id: string) => ["job", id] as const,
  incidents: ["incidents"] as const,
  incident: (id: string) => ["incident", id] as const,
  decision: (id: string) => ["decision", id] as const,
  nodes: ["nodes"] as const,
  node: (id: string) => ["node", id] as const,
  faults: ["faults"] as const,
};

export const me = () =>
  queryOptions({ queryKey: keys.me, queryFn: ({ signal }) => get<t.Me>("/me", {}, signal), retry: false, staleTime: 60_000 });

export const version = () =>
  queryOptions({ queryKey: ["version"], queryFn: ({ signal }) => get<{ version?: string }>("/version", {}, signal), staleTime: Infinity });

export const overview = () =>
  queryOptions({ queryKey: keys.overview, queryFn: ({ signal }) => get<Overview>("/overview", {}, signal), refetchInterval: POLL_MS });

export const jobs = (state: string, q: string) =>
  infiniteQueryOptions({
    queryKey: [...keys.jobs, state, q],
    queryFn: ({ signal, pageParam }) => get<t.Page<t.Job>>("/jobs", { state, q, limit: PAGE, cursor: pageParam }, signal),
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next,
    refetchInterval: POLL_MS,
  });

export const job = (id: string) =>
  queryOptions({ queryKey: keys.job(id), queryFn: ({ signal }) => get<t.JobDetail>(`/jobs/${id}`, {}, signal), refetchInterval: POLL_MS });

function jobPart<T>(id: string, part: string, params: Record<string, string | number> = {}) {
  return queryOptions({
    queryKey: [...keys.job(id), part, params],
    queryFn: ({ signal }) => get<t.Page<T>>(`/jobs/${id}/${part}`, params, signal),
    refetchInterval: POLL_MS,
  });
}

export const replicas = (id: string) => jobPart<t.Replica>(id, "replicas");
/* Not under the job's key: steps are pushed, and 2,000 of them must not be read again for every event. */
export const steps = (id: string) =>
  queryOptions({
    queryKey: ["steps", id],
    queryFn: ({ signal }) => get<t.Page<t.Step>>(`/jobs/${id}/steps`, { points: 2000 }, signal),
    refetchInterval: POLL_MS,
  });
export const jobEvents = (id: string) => jobPart<t.EventItem>(id, "events", { limit: 200, newest: "true", told: "true" });
export const jobDecisions = (id: string) => jobPart<Decision>(id, "decisions", { limit: 200 });
export const jobIncidents = (id: string) => jobPart<Incident>(id, "incidents");
export const timeouts = (id: string) => jobPart<t.SectionTimeout>(id, "timeouts");
export const budget = (id: string) =>
  queryOptions({ queryKey: [...keys.job(id), "budget"], queryFn: ({ signal }) => get<t.Budget>(`/jobs/${id}/budget`, {}, signal), refetchInterval: POLL_MS });
export const checkpoints = (id: string) => jobPart<t.Checkpoint>(id, "checkpoints");

export const logs = (id: string, replica: number, rank: number) =>
  queryOptions({
    queryKey: [...keys.job(id), "logs", replica, rank],
    queryFn: ({ signal }) => get<{ text: string; truncated: boolean }>(`/jobs/${id}/logs`, { replica, rank }, signal),
    retry: false,
  });

export const incidents = (state: string) =>
  queryOptions({
    queryKey: [...keys.incidents, state],
    queryFn: ({ signal }) => get<t.Page<Incident>>("/incidents", { state }, signal),
    refetchInterval: POLL_MS,
  });

export const incident = (id: string) =>
  queryOptions({
    queryKey: keys.incident(id),
    queryFn: ({ signal }) => get<IncidentDetail>(`/incidents/${id}`, {}, signal),
    refetchInterval: POLL_MS,
  });

export const decision = (id: string) =>
  queryOptions({
    queryKey: keys.decision(id),
    queryFn: ({ signal }) => get<Decision>(`/decisions/${id}`, {}, signal),
    refetchInterval: POLL_MS,
  });

export const nodes = () =>
  queryOptions({ queryKey: keys.nodes, queryFn: ({ signal }) => get<t.Page<t.Node>>("/nodes", {}, signal), refetchInterval: POLL_MS });

export const node = (id: string) =>
  queryOptions({ queryKey: keys.node(id), queryFn: ({ signal }) => get<t.NodeDetail>(`/nodes/${id}`, {}, signal), refetchInterval: POLL_MS });

export const deadLetters = (id: string) =>
  queryOptions({
    queryKey: [...keys.node(id), "dead-letters"],
    queryFn: ({ signal }) => get<t.Page<t.DeadLetter>>(`/nodes/${id}/dead-letters`, {}, signal),
    refetchInterval: POLL_MS,
    retry: false,
  });

export const series = (id: string, windowS: number) =>
  queryOptions({
    queryKey: ["series", id, windowS],
    queryFn: ({ signal }) => get<{ devices: t.DeviceSeries[] }>(`/nodes/${id}/series`, { window_s: windowS, max_points: 300 }, signal),
    refetchInterval: 5_000,
  });

export const faults = () =>
  queryOptions({ queryKey: keys.faults, queryFn: ({ signal }) => get<{ items: t.FaultKind[] }>("/demo/faults", {}, signal), staleTime: 60_000 });
