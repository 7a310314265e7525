/* The address table. Every view is a URL; unknown ones say so. A page that fails does so inside the
   frame: the menu, the live state and the clock stay. */
import { type ReactElement, useEffect } from "react";
import { createBrowserRouter, useRouteError } from "react-router";
import { Empty, PageHead, Problem } from "./ui/basics";
import { loadChaosSheet, loadPalette, Shell } from "./components/Shell";
import { isMissingChunk, retried, whenIdle } from "./lib/chunks";
import { isNewer, lookForNewer, reloadOnce } from "./lib/fresh";
import { useLive } from "./live/hooks";
import { LoginPage } from "./pages/LoginPage";
import { OverviewPage } from "./pages/OverviewPage";

function NotFound(): ReactElement {
  return (
    <>
      <PageHead title="Not found" />
      <Empty icon="question" title="There is no page at this address">Use the menu above to go back.</Empty>
    </>
  );
}

function Failed(): ReactElement {
  const error = useRouteError();
  return isMissingChunk(error) ? <PartMissing /> : (
    <div className="content">
      <PageHead title="This page failed" />
      <Problem error={error} retry={() => location.reload()} />
    </div>
  );
}

/** A part of the page itself could not be fetched. Once the server is heard again, it is; a newer version is loaded whole. */
function PartMissing(): ReactElement {
  const linked = useLive((state) => state.link === "live");
  useEffect(() => {
    if (linked) void lookForNewer().then(() => reloadOnce(Date.now()));
  }, [linked]);
  return (
    <div className="content">
      <PageHead title="This page has not loaded yet" />
      <div className="notice tone-warn" role="alert">
        <div>
          <p>{isNewer() ? "Holdfast has a newer version: reload the page." : "The control plane did not send this part of the page. It loads automatically once the control plane answers; training continues without it."}</p>
          <button type="button" className="button" onClick={() => location.reload()}>Load it now</button>
        </div>
      </div>
    </div>
  );
}

const PAGES = {
  jobs: () => import("./pages/JobsPage").then((module) => ({ Component: module.JobsPage })),
  submit: () => import("./pages/SubmitPage").then((module) => ({ Component: module.SubmitPage })),
  job: () => import("./pages/JobPage").then((module) => ({ Component: module.JobPage })),
  incidents: () => import("./pages/IncidentsPage").then((module) => ({ Component: module.IncidentsPage })),
  incident: () => import("./pages/IncidentPage").then((module) => ({ Component: module.IncidentPage })),
  decision: () => import("./pages/DecisionPage").then((module) => ({ Component: module.DecisionPage })),
  queue: () => import("./pages/QueuePage").then((module) => ({ Component: module.QueuePage })),
  access: () => import("./pages/AccessPage").then((module) => ({ Component: module.AccessPage })),
  ledger: () => import("./pages/LedgerPage").then((module) => ({ Component: module.LedgerPage })),
  policies: () => import("./pages/PoliciesPage").then((module) => ({ Component: module.PoliciesPage })),
  projects: () => import("./pages/ProjectsPage").then((module) => ({ Component: module.ProjectsPage })),
  project: () => import("./pages/ProjectPage").then((module) => ({ Component: module.ProjectPage })),
  nodes: () => import("./pages/NodesPage").then((module) => ({ Component: module.NodesPage })),
  node: () => import("./pages/NodePage").then((module) => ({ Component: module.NodePage })),
};

/** All pages are small: they are fetched before they are wanted, so that a click needs no server. */
export function preloadWhenIdle(): void {
  whenIdle([...Object.values(PAGES), loadChaosSheet, loadPalette]);
}

export function makeRouter(): ReturnType<typeof createBrowserRouter> {
  return createBrowserRouter([
    { path: "/login", element: <LoginPage />, errorElement: <Failed /> },
    {
      path: "/",
      element: <Shell />,
      errorElement: <Failed />,
      hydrateFallbackElement: <></>,
      children: [
        {
          errorElement: <Failed />,
          children: [
            { index: true, element: <OverviewPage /> },
            { path: "jobs", lazy: () => retried(PAGES.jobs) },
            { path: "jobs/new", lazy: () => retried(PAGES.submit) },
            { path: "jobs/:id", lazy: () => retried(PAGES.job) },
            { path: "incidents", lazy: () => retried(PAGES.incidents) },
            { path: "incidents/:id", lazy: () => retried(PAGES.incident) },
            { path: "decisions/:id", lazy: () => retried(PAGES.decision) },
            { path: "queue", lazy: () => retried(PAGES.queue) },
            { path: "access", lazy: () => retried(PAGES.access) },
            { path: "ledger", lazy: () => retried(PAGES.ledger) },
            { path: "policies", lazy: () => retried(PAGES.policies) },
            { path: "projects", lazy: () => retried(PAGES.projects) },
            { path: "projects/:name", lazy: () => retried(PAGES.project) },
            { path: "nodes", lazy: () => retried(PAGES.nodes) },
            { path: "nodes/:id", lazy: () => retried(PAGES.node) },
            { path: "*", element: <NotFound /> },
          ],
        },
      ],
    },
  ]);
}
