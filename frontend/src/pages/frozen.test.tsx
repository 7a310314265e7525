/* What could not be read is not said to be not kept: the reads of these pages fail, since no server is there to answer them. */
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, render, screen } from "@testing-library/react";
import type { ReactElement } from "react";
import { MemoryRouter } from "react-router";
import { afterEach, beforeEach, expect, it } from "vitest";
import * as queries from "../api/queries";
import { FrozenJob } from "./FrozenJob";
import { FrozenNode } from "./FrozenNode";

const AT = { iso: "2026-11-29T13:59:00Z", ms: Date.parse("2026-11-29T13:59:00Z") };
const JOB = { id: "job_1", name: "gpt", project: "p", owner: "o", created_at: "2026-11-29T13:00:00Z", finished_at: null, state: "running", layout: null, attempts: [], total_steps: 100 };
const NOT_KEPT = /not kept for this time|is kept for this time|is known until then|No checkpoint until then|No decisions/;
let client: QueryClient;

beforeEach(() => {
  /* Nothing listens at port 1. */
  (window as unknown as { happyDOM: { setURL: (url: string) => void } }).happyDOM.setURL("http://127.0.0.1:1/");
  client = new QueryClient({ defaultOptions: { queries: { retry: false, staleTime: Infinity } } });
  client.setQueryData(queries.job("job_1").queryKey, JOB as never);
  client.setQueryData(queries.node("node_1").queryKey, { id: "node_1", name: "gpu-07" } as never);
});
afterEach(() => {
  cleanup();
  client.clear();
});

const show = (page: ReactElement, tab = ""): unknown => render(<QueryClientProvider client={client}><MemoryRouter initialEntries={[`/?tab=${tab}`]}>{page}</MemoryRouter></QueryClientProvider>);
const said = (): string => document.body.textContent!.replace("are not kept for this time.", "").replace("is not kept for this time;", "");

it("of a node", async () => {
  show(<FrozenNode id="node_1" at={AT} />);
  expect(screen.getByText("state being read")).toBeTruthy();
  expect(await screen.findByText("state could not be read")).toBeTruthy();
  expect(await screen.findAllByText("No answer from the control plane")).toHaveLength(3);
  expect(said()).not.toMatch(NOT_KEPT);
});

it.each(["events", "incidents", "decisions", "checkpoints"])("of a job, its %s among them", async (tab) => {
  client.setQueryData(queries.stepsOf("job_1", 1).queryKey, { items: [], next: null, as_of_seq: 0 } as never);
  show(<FrozenJob id="job_1" at={AT} />, tab);
  expect(screen.getByText("state being read")).toBeTruthy();
  expect(await screen.findByText("state could not be read")).toBeTruthy();
  expect(await screen.findByText(/Not drawn, because they could not be read: incidents, decisions, checkpoints/)).toBeTruthy();
  expect(screen.getAllByText("could not be read")).toHaveLength(4);
  const steps = screen.getByRole("region", { name: "Loss and step time" });
  expect(steps.textContent).toContain("No step is kept for this time");
  expect(screen.getByRole("region", { name: "Lifeline of the replicas" }).textContent).toContain("No answer from the control plane");
  expect(screen.getByRole("tabpanel").textContent).toContain("No answer from the control plane");
  expect(said()).not.toMatch(/No incident is known|No checkpoint until|No decisions|No event is kept|none known/);
});

it("and what is read and empty is said to be not kept", async () => {
  const empty = { items: [], next: null, as_of_seq: 0 } as never;
  for (const entity of ["node", "device"] as const) client.setQueryData(queries.nodeUntil("node_1", AT.iso, entity).queryKey, empty);
  show(<FrozenNode id="node_1" at={AT} />);
  expect(screen.getByText("state not kept for this time")).toBeTruthy();
  expect(screen.getByText("Nothing of its devices is kept for this time")).toBeTruthy();
});
