/* What the palette knows of the server: a few rows of each kind for what is typed, found there and never here. */
import { keepPreviousData, queryOptions, useQueries, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { get } from "../api/client";
import * as queries from "../api/queries";
import type { Page } from "../api/types";
import { type Found, type FoundIncident, type FoundJob, type FoundNode, KINDS, ofIncident, ofJob, ofNode, parsed, type Thing } from "../lib/palette";
import type { Kind } from "../lib/recent";

const ROWS = 6;
const RESTED_MS = 120;
const FRESH_MS = 5_000;
const FIELDS: Record<Kind, string> = {
  job: "id,name,project,state,capabilities",
  node: "id,name,state,segment,capabilities",
  incident: "id,title,state,job_id,job_name,node_name,capabilities",
};
const AT = { job: "/jobs", node: "/nodes", incident: "/incidents" } as const;
type Row = FoundJob | FoundNode | FoundIncident;

const rows = (kind: Kind, q: string) =>
  queryOptions({
    queryKey: [...queries.keys.found, kind, q],
    queryFn: async ({ signal }) => (await get(AT[kind], {}, { q, count: true, limit: ROWS, fields: FIELDS[kind] }, signal)) as unknown as Page<Row>,
    staleTime: FRESH_MS,
    placeholderData: keepPreviousData,
    retry: false,
  });

export interface Search {
  found: Found[];
  /** An answer to what is typed is still on its way. */
  pending: boolean;
  /** What could not be searched, and why. */
  errors: { kind: Kind; error: unknown }[];
}

/** What is typed, once the typing rests for a moment. */
function useRested(text: string): string {
  const [rested, setRested] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => setRested(text), RESTED_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return rested;
}

export function useFound(text: string): Search {
  const { acts, term } = parsed(text);
  const asked = useRested(term);
  const wanted = (kind: Kind): boolean => (acts.length > 0 ? acts.some((word) => word.kind === kind) : term !== "");
  const of = (kind: Kind) => ({ ...rows(kind, asked), enabled: wanted(kind) && asked === term });
  /* One by one: what was found before is kept by a query of its own, and not by several in one. */
  const answers = { job: useQuery(of("job")), node: useQuery(of("node")), incident: useQuery(of("incident")) };
  const incidents = (answers.incident.data?.items ?? []) as FoundIncident[];
  const projects = useProjects(wanted("incident") ? incidents : []);
  const found = KINDS.map((kind): Found => {
    const page = wanted(kind) ? answers[kind].data : undefined;
    return { kind, things: (page?.items ?? []).map((row) => thing(kind, row, projects)), total: asked !== term || answers[kind].isPlaceholderData ? null : (page?.total ?? null) };
  });
  const asking = KINDS.filter(wanted);
  return {
    found,
    pending: asking.length > 0 && (asked !== term || asking.some((kind) => answers[kind].isFetching)),
    errors: asking.map((kind) => ({ kind, error: answers[kind].error })).filter(({ error }) => error !== null),
  };
}

function thing(kind: Kind, row: Row, projects: ReadonlyMap<string, string>): Thing {
  if (kind === "job") return ofJob(row as FoundJob);
  return kind === "node" ? ofNode(row as FoundNode) : ofIncident(row as FoundIncident, projects);
}

/** The projects of their jobs, by which it is judged who may acknowledge them. */
function useProjects(incidents: readonly FoundIncident[]): ReadonlyMap<string, string> {
  const jobs = [...new Set(incidents.filter((incident) => incident.capabilities?.["acknowledge"] === "" && incident.job_id !== null).map((incident) => incident.job_id!))];
  const read = useQueries({ queries: jobs.map((id) => ({ ...queries.job(id), staleTime: 60_000, refetchInterval: false as const, retry: false })) });
  return new Map(read.flatMap((query) => (query.data ? [[query.data.id, query.data.project] as const] : [])));
}

/** What the page at this address is of, as the page itself has read it. */
export function useHere(pathname: string): Thing | null {
  const [, list, id] = /^\/(jobs|nodes|incidents)\/([^/]+)$/.exec(pathname) ?? [];
  const of = (name: string): boolean => list === name && id !== "new";
  const job = useQuery({ ...queries.job(id ?? ""), enabled: of("jobs") }).data;
  const node = useQuery({ ...queries.node(id ?? ""), enabled: of("nodes") }).data;
  const incident = useQuery({ ...queries.incident(id ?? ""), enabled: of("incidents") }).data;
  const projects = useProjects(of("incidents") && incident ? [incident] : []);
  if (of("jobs") && job) return ofJob(job);
  if (of("nodes") && node) return ofNode(node);
  return of("incidents") && incident ? ofIncident(incident, projects) : null;
}
