/* Query keys and fetchers, one per resource. The live socket pushes changes; `POLL_MS` is the
   slow net under it, since nothing may rely on a push arriving. A paused page asks nothing, and
   what has ended long ago is not asked again. */
import { infiniteQueryOptions, type InfiniteData, queryOptions } from "@tanstack/react-query";
import { type FleetColumns, FIELDS } from "../lib/bigmap";
import { readWhole } from "../lib/columns";
import { type Incarnation, INCARNATION_FIELDS } from "../lib/history";
import { ENDED_STATES } from "../lib/jobnow";
import { live } from "../live/store";
import { get } from "./client";
import type { Answer, Item, Named, Query, Readable } from "./types";
import type * as t from "./types";
import { type PolicyOf, chosen } from "../lib/policy";

export const POLL_MS = 15_000;
const LOG_POLL_MS = 2_000;
const MESH_POLL_MS = 5_000;
const PAGE = 200;
/** As many as the server gives at once: for what is drawn whole. */
export const LARGE_PAGE = 500;
/** What follows an end (the last exits, a certificate) has come by then. */
const SETTLED_MS = 120_000;

export const keys = {
  me: ["me"] as const,
  overview: ["overview"] as const,
  jobs: ["jobs"] as const,
  found: ["found"] as const,
  job: (id: string) => ["job", id] as const,
  incarnations: (id: string) => ["incarnations", id] as const,
  incidents: ["incidents"] as const,
  incident: (id: string) => ["incident", id] as const,
  decision: (id: string) => ["decision", id] as const,
  nodes: ["nodes"] as const,
  columns: ["columns"] as const,
  queue: ["queue"] as const,
  capacity: ["capacity"] as const,
  reservations: ["reservations"] as const,
  engines: ["engines"] as const,
  tokens: ["tokens"] as const,
  joinTokens: ["join-tokens"] as const,
  node: (id: string) => ["node", id] as const,
  faults: ["faults"] as const,
  policy: ["policy"] as const,
  projects: ["projects"] as const,
  project: (name: string) => ["project", name] as const,
};

/** Every `ms`, but not while the page is paused. */
const every = (ms: number) => (): number | false => (live.paused ? false : ms);

/** True once a job has ended so long ago that nothing of it changes any more. */
export function isSettled(job: { state: string; finished_at: string | null } | undefined, nowMs: number): boolean {
  return job !== undefined && ENDED_STATES.has(job.state) && job.finished_at !== null && nowMs - Date.parse(job.finished_at) > SETTLED_MS;
}

/** All rows of the pages that were read, and how many there are. */
export function whole<T>(data: InfiniteData<t.Page<T>> | undefined): { rows: T[]; total: number | null; asOfSeq: number } {
  const rows = data?.pages.flatMap((page) => page.items) ?? [];
  return { rows, total: data?.pages[0]?.total ?? null, asOfSeq: data?.pages[0]?.as_of_seq ?? 0 };
}

type Entity = NonNullable<Query<"/events">["entity"]>;

/** Paths that answer pages. */
type Listed = { [P in Readable]: Answer<P> extends { items: unknown[] } ? P : never }[Readable];

/** Counted once, with the first page. */
function listOf<P extends Listed>(key: readonly unknown[], path: P, named: Named<P>, params: Query<P> = {} as Query<P>, settled = false) {
  return infiniteQueryOptions({
    queryKey: [...key, params],
    queryFn: async ({ signal, pageParam }) =>
      (await get(path, named, { limit: PAGE, count: pageParam === null || null, ...params, cursor: pageParam } as Query<P>, signal)) as t.Page<Item<P>>,
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next,
    refetchInterval: settled ? false : every(POLL_MS),
  });
}

export const me = () =>
  queryOptions({ queryKey: keys.me, queryFn: ({ signal }) => get("/me", {}, {}, signal), retry: false, staleTime: 60_000 });

export const version = () =>
  queryOptions({ queryKey: ["version"], queryFn: ({ signal }) => get("/version", {}, {}, signal), staleTime: Infinity });

export const overview = () =>
  queryOptions({ queryKey: keys.overview, queryFn: ({ signal }) => get("/overview", {}, {}, signal), refetchInterval: every(POLL_MS) });

/** Of the fleet, of a project or of a job. */
export const policy = (of: PolicyOf) =>
  queryOptions({ queryKey: [...keys.policy, chosen(of)], queryFn: ({ signal }) => get("/policy", {}, { ...of }, signal), refetchInterval: every(POLL_MS) });
export const policyVersions = (of: PolicyOf) => listOf([...keys.policy, chosen(of), "versions"], "/policy/versions", {}, { ...of });
export const policyXids = () => queryOptions({ queryKey: [...keys.policy, "xids"], queryFn: ({ signal }) => get("/policy/xids", {}, {}, signal) });
export const policyShadow = () =>
  queryOptions({ queryKey: [...keys.policy, "shadow"], queryFn: ({ signal }) => get("/policy/shadow", {}, {}, signal), refetchInterval: every(POLL_MS) });
export const policyDiff = (before: number, after: number, of: PolicyOf) =>
  queryOptions({ queryKey: [...keys.policy, chosen(of), "diff", before, after], queryFn: ({ signal }) => get("/policy/diff", {}, { before, after, ...of }, signal) });

export const jobs = (state: string, q: string, project = "") => listOf(keys.jobs, "/jobs", {}, { state, q, project });

export const projects = () => listOf(keys.projects, "/projects", {});

export const project = (name: string) =>
  queryOptions({ queryKey: keys.project(name), queryFn: ({ signal }) => get("/projects/{name}", { name }, {}, signal), refetchInterval: every(POLL_MS) });

export const job = (id: string) =>
  queryOptions({
    queryKey: keys.job(id),
    queryFn: ({ signal }) => get("/jobs/{job_id}", { job_id: id }, {}, signal),
    refetchInterval: (query) => (live.paused || isSettled(query.state.data, Date.now()) ? false : POLL_MS),
  });

/** Of a large job: every rank as columns. */
export const mesh = (id: string, settled = false) =>
  queryOptions({
    queryKey: ["mesh", id],
    queryFn: ({ signal }) => readWhole((cursor) => get("/jobs/{job_id}/mesh", { job_id: id }, { cursor }, signal)),
    refetchInterval: settled ? false : every(MESH_POLL_MS),
  });

/** The newest incarnation of one slot, with its ranks; nothing of a large job is pushed. */
export const replica = (id: string, index: number, settled = false) =>
  queryOptions({
    queryKey: [...keys.job(id), "replica", index],
    queryFn: ({ signal }) => get("/jobs/{job_id}/replicas", { job_id: id }, { index, current: true }, signal),
    refetchInterval: settled ? false : every(MESH_POLL_MS),
  });

export const replicas = (id: string, settled = false) =>
  queryOptions({
    queryKey: [...keys.job(id), "replicas"],
    queryFn: ({ signal }) => get("/jobs/{job_id}/replicas", { job_id: id }, {}, signal),
    refetchInterval: settled ? false : every(POLL_MS),
  });
/** Every incarnation that a slot has had, with its ranks. */
export const lives = (id: string, index: number, settled = false) =>
  queryOptions({
    queryKey: [...keys.job(id), "lives", index],
    queryFn: ({ signal }) => get("/jobs/{job_id}/replicas", { job_id: id }, { index }, signal),
    refetchInterval: settled ? false : every(POLL_MS),
  });
/** Every incarnation without its ranks, of which a large job has thousands: read again for what happens to a replica, and not for
    each event of the job. */
export const incarnations = (id: string, settled = false) =>
  queryOptions({
    queryKey: keys.incarnations(id),
    queryFn: async ({ signal }) => (await get("/jobs/{job_id}/replicas", { job_id: id }, { fields: INCARNATION_FIELDS }, signal)).items as Incarnation[],
    refetchInterval: settled ? false : every(POLL_MS),
  });
/* Not under the job's key: steps are pushed, and 2,000 of them must not be read again for every event. */
/** Of one attempt; `sinceStep` given: every one from there on, not thinned. */
export const stepsOf = (id: string, attempt: number, sinceStep: number | null = null) =>
  queryOptions({
    queryKey: ["steps", id, attempt, sinceStep],
    queryFn: ({ signal }) => get("/jobs/{job_id}/steps", { job_id: id }, sinceStep === null ? { attempt, points: 2000 } : { attempt, since_step: sinceStep }, signal),
  });
export const steps = (id: string, settled = false) =>
  queryOptions({
    queryKey: ["steps", id],
    queryFn: ({ signal }) => get("/jobs/{job_id}/steps", { job_id: id }, { points: 2000 }, signal),
    refetchInterval: settled ? false : every(POLL_MS),
  });
/** The newest first; each further page ends before the first event of the one before it. */
export const jobEvents = (id: string, settled = false) =>
  infiniteQueryOptions({
    queryKey: [...keys.job(id), "events"],
    queryFn: ({ signal, pageParam }) => get("/jobs/{job_id}/events", { job_id: id }, { limit: PAGE, newest: true, with_sentence: true, before_seq: pageParam }, signal),
    initialPageParam: null as number | null,
    getNextPageParam: (page) => (page.items.length < PAGE ? null : page.items[0]!.seq),
    refetchInterval: settled ? false : every(POLL_MS),
  });
/** The newest summaries of these parts of a job until an instant: how they were then. */
export const jobUntil = (id: string, at: string, entity: Entity, limit = LARGE_PAGE) =>
  queryOptions({
    queryKey: ["until", at, "job", id, entity],
    queryFn: ({ signal }) => get("/jobs/{job_id}/events", { job_id: id }, { newest: true, until: at, entity, limit }, signal),
  });
/** The same of a node and its devices. */
export const nodeUntil = (id: string, at: string, entity: Entity, limit = LARGE_PAGE) =>
  queryOptions({
    queryKey: ["until", at, "node", id, entity],
    queryFn: ({ signal }) => get("/events", {}, { node_id: id, newest: true, until: at, entity, limit }, signal),
  });
/** What happened until an instant, the newest first. */
export const eventsUntil = (of: { job: string } | { node: string }, at: string) =>
  infiniteQueryOptions({
    queryKey: ["until", at, "events", of],
    queryFn: ({ signal, pageParam }) => {
      const query = { limit: PAGE, newest: true, with_sentence: true, until: at, before_seq: pageParam };
      return "job" in of ? get("/jobs/{job_id}/events", { job_id: of.job }, query, signal) : get("/events", {}, { ...query, node_id: of.node }, signal);
    },
    initialPageParam: null as number | null,
    getNextPageParam: (page) => (page.items.length < PAGE ? null : page.items[0]!.seq),
  });
export const timeouts = (id: string, settled = false) =>
  queryOptions({
    queryKey: [...keys.job(id), "timeouts"],
    queryFn: ({ signal }) => get("/jobs/{job_id}/timeouts", { job_id: id }, {}, signal),
    refetchInterval: settled ? false : every(POLL_MS),
  });
/** While the job waits for devices. */
export const queue = (id: string) =>
  queryOptions({ queryKey: [...keys.job(id), "queue"], queryFn: ({ signal }) => get("/jobs/{job_id}/queue", { job_id: id }, {}, signal), refetchInterval: every(POLL_MS) });
/** All who wait, in line. */
export const waiting = () => listOf(keys.queue, "/queue", {});
export const reservations = () =>
  queryOptions({ queryKey: keys.reservations, queryFn: ({ signal }) => get("/reservations", {}, { holds: true, count: true, limit: LARGE_PAGE }, signal), refetchInterval: every(POLL_MS) });
export const reservationsOf = (nodeId: string) =>
  queryOptions({ queryKey: [...keys.reservations, nodeId], queryFn: ({ signal }) => get("/reservations", {}, { holds: true, node_id: nodeId }, signal), refetchInterval: every(POLL_MS) });
export const engines = () => queryOptions({ queryKey: keys.engines, queryFn: ({ signal }) => get("/engines", {}, {}, signal), refetchInterval: every(POLL_MS) });
export const capacity = () => queryOptions({ queryKey: keys.capacity, queryFn: ({ signal }) => get("/capacity", {}, {}, signal), refetchInterval: every(POLL_MS) });
export const budget = (id: string, settled = false) =>
  queryOptions({ queryKey: [...keys.job(id), "budget"], queryFn: ({ signal }) => get("/jobs/{job_id}/budget", { job_id: id }, {}, signal), refetchInterval: settled ? false : every(POLL_MS) });
export const jobDecisions = (id: string, settled = false) => listOf([...keys.job(id), "decisions"], "/jobs/{job_id}/decisions", { job_id: id }, {}, settled);
export const jobIncidents = (id: string, settled = false) => listOf([...keys.job(id), "incidents"], "/jobs/{job_id}/incidents", { job_id: id }, {}, settled);
export const checkpoints = (id: string, settled = false) => listOf([...keys.job(id), "checkpoints"], "/jobs/{job_id}/checkpoints", { job_id: id }, {}, settled);

/** Of one life of a rank; asked again while it lives, as a look at its log may have come. */
export const logs = (id: string, replica: number, rank: number, incarnation: number) =>
  queryOptions({
    queryKey: [...keys.job(id), "logs", replica, rank, incarnation],
    queryFn: ({ signal }) => get("/jobs/{job_id}/logs", { job_id: id }, { replica, rank, incarnation }, signal),
    refetchInterval: (query) => (query.state.data?.source === "exit" ? false : LOG_POLL_MS),
    retry: false,
  });

export const incidents = (state: string, q = "") => listOf(keys.incidents, "/incidents", {}, { state, q });

export const incident = (id: string) =>
  queryOptions({
    queryKey: keys.incident(id),
    queryFn: ({ signal }) => get("/incidents/{incident_id}", { incident_id: id }, {}, signal),
    refetchInterval: every(POLL_MS),
  });

/** Asked once, and once more when the time that it covers is over, or each poll while readings are to be written: not with every event, so not under the incident's
    own key. `faultAt`: another fault is another question. */
export const readingsAround = (id: string, faultAt: string) =>
  queryOptions({
    queryKey: ["readings-around", id, faultAt],
    queryFn: ({ signal }) => get("/incidents/{incident_id}/readings", { incident_id: id }, {}, signal),
    staleTime: Infinity,
    refetchInterval: (query) => (live.paused || !query.state.data ? false : readingsAgainInMs(query.state.data, Date.now())),
  });

/** Until the time that they cover is over, or readings that are still to be written may be there; false: nothing comes. */
export function readingsAgainInMs(read: Pick<t.IncidentReadings, "complete" | "awaited" | "until" | "devices">, nowMs: number): number | false {
  const missing = read.devices.some((device) => device.series === null);
  if (read.awaited && missing) return POLL_MS;
  return read.complete ? false : againInMs(read.until, nowMs);
}

/** Until what the sentinel collects is shown, after `until`. */
export function againInMs(until: string, nowMs: number): number {
  return Math.max(POLL_MS, Date.parse(until) + 5_000 - nowMs);
}

export const decision = (id: string) =>
  queryOptions({
    queryKey: keys.decision(id),
    queryFn: ({ signal }) => get("/decisions/{decision_id}", { decision_id: id }, {}, signal),
    /* What was approved, or whose time is over, is carried out within moments: by another decision, whose event is not this one's. */
    refetchInterval: (query) => (live.paused ? false : query.state.data?.mode === "recommend" && query.state.data.capabilities["approve"] === "" ? 3_000 : POLL_MS),
  });

/** Read when they are looked at, and by each poll. */
export const audit = (filter: Query<"/audit">) => listOf(["audit"], "/audit", {}, { ...filter, count: false });
export const auditState = () => queryOptions({ queryKey: ["audit", "state"], queryFn: ({ signal }) => get("/audit/state", {}, {}, signal), refetchInterval: every(POLL_MS) });
export const settings = () => queryOptions({ queryKey: ["settings"], queryFn: ({ signal }) => get("/settings", {}, {}, signal), staleTime: 60_000 });
export const tokens = (everybody: boolean) => listOf(keys.tokens, "/tokens", {}, { everybody });
/** What was enrolled after event `afterSeq`. */
export const enrolled = (afterSeq: number) =>
  queryOptions({
    queryKey: ["enrolled", afterSeq],
    queryFn: async ({ signal }) => (await get("/events", {}, { after_seq: afterSeq, with_sentence: true, limit: LARGE_PAGE }, signal)).items.filter((event) => event.kind === "node.enrolled"),
    refetchInterval: every(3_000),
  });
export const joinTokens = () => listOf(keys.joinTokens, "/join-tokens", {});

/** What is counted moves with every step: read again, not pushed. */
export const ledger = (by: Query<"/ledger">["by"], windowS: number, scope: Pick<Query<"/ledger">, "job" | "node">) =>
  queryOptions({
    queryKey: ["ledger", by, windowS, scope],
    queryFn: ({ signal }) => get("/ledger", {}, { by, window_s: windowS, ...scope }, signal),
    refetchInterval: every(POLL_MS),
  });

export const bill = (name: string, month: string) =>
  queryOptions({
    queryKey: [...keys.project(name), "bill", month],
    queryFn: ({ signal }) => get("/projects/{name}/bill", { name }, { month }, signal),
    refetchInterval: every(POLL_MS),
  });

export const nodes = (q: string) => listOf(keys.nodes, "/nodes", {}, { q });

/** All nodes as columns, for fleets of thousands; who asks says himself what news is worth another read. */
export const columns = () =>
  queryOptions({
    queryKey: keys.columns,
    queryFn: async ({ signal }) => (await readWhole((cursor) => get("/nodes:columns", {}, { fields: FIELDS.join(","), cursor }, signal))).columns as unknown as FleetColumns,
    refetchInterval: every(POLL_MS),
  });

/** Every node there is, for what is drawn whole: read to its end by `useFleet`. */
export const fleet = () => listOf(keys.nodes, "/nodes", {}, { limit: LARGE_PAGE });

export const node = (id: string) =>
  queryOptions({ queryKey: keys.node(id), queryFn: ({ signal }) => get("/nodes/{node_id}", { node_id: id }, {}, signal), refetchInterval: every(POLL_MS) });

export const deadLetters = (id: string) =>
  queryOptions({
    queryKey: [...keys.node(id), "dead-letters"],
    queryFn: ({ signal }) => get("/nodes/{node_id}/dead-letters", { node_id: id }, {}, signal),
    refetchInterval: every(POLL_MS),
    retry: false,
  });

/** `until` null: the newest. */
export const series = (id: string, windowS: number, until: string | null = null) =>
  queryOptions({
    queryKey: ["series", id, windowS, until],
    queryFn: ({ signal }) => get("/nodes/{node_id}/series", { node_id: id }, { window_s: windowS, until, max_points: 300 }, signal),
    refetchInterval: until === null ? every(5_000) : false,
  });

export const faults = () =>
  queryOptions({ queryKey: keys.faults, queryFn: ({ signal }) => get("/demo/faults", {}, {}, signal), staleTime: 60_000 });
