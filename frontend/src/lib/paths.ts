/* Every address of the console, in one place. Of a frozen page those of jobs and nodes lead to the same moment. */
import { frozenAt } from "./frozen";

/** With these parameters, and the moment at which this page is frozen. */
function atThatTime(path: string, query: Record<string, string> = {}): string {
  const at = frozenAt();
  const search = new URLSearchParams(at === null ? query : { ...query, at });
  return search.size > 0 ? `${path}?${search}` : path;
}

export const paths = {
  overview: () => "/",
  login: () => "/login",
  jobs: (query: Record<string, string> = {}) => `/jobs${Object.keys(query).length > 0 ? `?${new URLSearchParams(query)}` : ""}`,
  submit: () => "/jobs/new",
  job: (id: string, tab?: string) => atThatTime(`/jobs/${id}`, tab ? { tab } : {}),
  incidents: () => "/incidents",
  incident: (id: string) => `/incidents/${id}`,
  decision: (id: string) => `/decisions/${id}`,
  queue: () => "/queue",
  access: () => "/access",
  ledger: (query: Record<string, string> = {}) => `/ledger${Object.keys(query).length > 0 ? `?${new URLSearchParams(query)}` : ""}`,
  policies: (project?: string) => `/policies${project ? `?project=${encodeURIComponent(project)}` : ""}`,
  projects: () => "/projects",
  project: (name: string) => `/projects/${name}`,
  nodes: () => "/nodes",
  node: (id: string) => atThatTime(`/nodes/${id}`),
  /** By its name, where that can stand in a path of the API; else where it is found. */
  nodeNamed: (name: string) => (/^[\w.-]{1,64}$/.test(name) ? paths.node(name) : `/nodes?q=${encodeURIComponent(name)}`),
};
