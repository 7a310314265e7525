/* Every address of the console, in one place. */
export const paths = {
  overview: () => "/",
  login: () => "/login",
  jobs: (query: Record<string, string> = {}) => `/jobs${Object.keys(query).length > 0 ? `?${new URLSearchParams(query)}` : ""}`,
  submit: () => "/jobs/new",
  job: (id: string, tab?: string) => `/jobs/${id}${tab ? `?tab=${tab}` : ""}`,
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
  node: (id: string) => `/nodes/${id}`,
};
