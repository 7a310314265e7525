/* Entry: theme, query cache, routes. Pages beyond the overview are loaded when first visited. */
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/layout.css";
import "./styles/pages.css";
import { QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { RouterProvider } from "react-router";
import { ApiProblem, get } from "./api/client";
import { keys } from "./api/queries";
import { sessionEnded } from "./api/signin";
import { lookForNewer } from "./lib/fresh";
import { applyTheme } from "./lib/settings";
import { live } from "./live/store";
import { makeRouter, preloadWhenIdle } from "./routes";

applyTheme();

const READ_RETRIES = 2;
const client: QueryClient = new QueryClient({
  queryCache: new QueryCache({
    onError: (error, query) => {
      if (error instanceof ApiProblem && error.status === 401 && query.queryKey[0] !== keys.me[0]) ended();
    },
  }),
  defaultOptions: {
    queries: {
      staleTime: 2_000,
      refetchOnWindowFocus: () => !live.paused,
      refetchOnReconnect: () => !live.paused,
      refetchOnMount: () => !live.paused,
      retry: (failures, error) => failures < READ_RETRIES && error instanceof ApiProblem && error.retryable,
    },
  },
});

/** To leave is to ask who we are: the shell then leads to the sign-in page. */
const ended = (): void => void sessionEnded({
  leave: () => void client.resetQueries({ queryKey: keys.me }),
  resume: () => void client.invalidateQueries(),
  isOver: () => get("/me", {}).then(() => false, (error: unknown) => error instanceof ApiProblem && error.status === 401),
});

live.onSignedOut = ended;
live.onGreeted = () => void lookForNewer();
preloadWhenIdle();

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <QueryClientProvider client={client}>
      <RouterProvider router={makeRouter()} />
    </QueryClientProvider>
  </StrictMode>,
);
