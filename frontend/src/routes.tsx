/* The address table. Every view is a URL; unknown ones say so. */
import type { ReactElement } from "react";
import { createBrowserRouter, useRouteError } from "react-router";
import { Empty, PageHead, Problem } from "./ui/basics";
import { Shell } from "./components/Shell";
import { LoginPage } from "./pages/LoginPage";
import { OverviewPage } from "./pages/OverviewPage";

function NotFound(): ReactElement {
  return (
    <>
      <PageHead title="Not found" />
      <Empty icon="question" title="There is no page at this address">The menu above leads back.</Empty>
    </>
  );
}

function Failed(): ReactElement {
  return (
    <div className="content">
      <PageHead title="This page failed" />
      <Problem error={useRouteError()} retry={() => location.reload()} />
    </div>
  );
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
        { index: true, element: <OverviewPage /> },
        { path: "jobs", lazy: async () => ({ Component: (await import("./pages/JobsPage")).JobsPage }) },
        { path: "jobs/new", lazy: async () => ({ Component: (await import("./pages/SubmitPage")).SubmitPage }) },
        { path: "jobs/:id", lazy: async () => ({ Component: (await import("./pages/JobPage")).JobPage }) },
        { path: "incidents", lazy: async () => ({ Component: (await import("./pages/IncidentsPage")).IncidentsPage }) },
        { path: "incidents/:id", lazy: async () => ({ Component: (await import("./pages/IncidentPage")).IncidentPage }) },
        { path: "decisions/:id", lazy: async () => ({ Component: (await import("./pages/DecisionPage")).DecisionPage }) },
        { path: "nodes", lazy: async () => ({ Component: (await import("./pages/NodesPage")).NodesPage }) },
        { path: "nodes/:id", lazy: async () => ({ Component: (await import("./pages/NodePage")).NodePage }) },
        { path: "*", element: <NotFound /> },
      ],
    },
  ]);
}
