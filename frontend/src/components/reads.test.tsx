/* What is read of a job of thousands of ranks: the slot that is looked at, and nothing of the others' ranks. */
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, render, screen } from "@testing-library/react";
import type { ReactElement } from "react";
import { afterEach, beforeEach, expect, it } from "vitest";
import type { Rank } from "../api/types";
import { affectedKeys } from "../live/hooks";
import { keys } from "../api/queries";
import { LogDialog } from "./LogDialog";
import { EMPTY_PICK, TargetPicker } from "./TargetPicker";

const rank = (incarnation: number, number = 3): Rank => ({ id: `j/1/17/${incarnation}/${number}`, replica: 17, incarnation, rank: number, state: incarnation === 2 ? "training" : "exited", node_name: "gpu-07", capabilities: {} }) as unknown as Rank;
const replica = (incarnation: number): unknown => ({ id: `j/1/17/${incarnation}`, index: 17, incarnation, state: "active", current: incarnation === 2, ranks: [rank(incarnation), rank(incarnation, 4)] });
let asked: string[];
let server: Server;
let client: QueryClient;

beforeEach(async () => {
  asked = [];
  server = createServer((request, response) => {
    asked.push(request.url!);
    const items = request.url!.includes("/replicas") ? [replica(2), ...(request.url!.includes("current") ? [] : [replica(1)])] : request.url!.includes("/jobs?") ? [{ id: "job_1", name: "gpt" }] : [];
    response.setHeader("content-type", "application/json");
    response.end(JSON.stringify(request.url!.includes("/logs") ? { source: "none", text: "", state: "training", truncated: false, at: null } : { items, next: null, as_of_seq: 1, total: items.length }));
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  (window as unknown as { happyDOM: { setURL: (url: string) => void } }).happyDOM.setURL(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
  client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  client.setQueryData(keys.me, { username: "bo", roles: ["read", "submit", "operate"], projects: { p: "operate" }, demo: false, csrf: "" });
});
afterEach(async () => {
  cleanup();
  client.clear();
  server.closeAllConnections();
  await new Promise((done) => server.close(done));
});

const show = (part: ReactElement): unknown => render(<QueryClientProvider client={client}>{part}</QueryClientProvider>);
const ofReplicas = (): string[] => asked.filter((path) => path.includes("/replicas")).map((path) => path.split("?")[1] ?? "");

it("for a log: the lives of its slot", async () => {
  show(<LogDialog jobId="job_1" project="p" rank={rank(2)} settled onClose={() => undefined} />);
  expect((await screen.findAllByRole("button", { name: /^incarnation/ })).map((button) => button.textContent)).toEqual(["incarnation 2 (runs)", "incarnation 1"]);
  expect(ofReplicas()).toEqual(["index=17"]);
});

it("for a target: slots without ranks, then the ranks of the one that is chosen", async () => {
  show(<TargetPicker needs={["rank"]} pick={{ ...EMPTY_PICK, job: "job_1", replica: "17", rank: "4" }} onPick={() => undefined} />);
  expect(await screen.findByRole("option", { name: "rank 4 on gpu-07" })).toBeTruthy();
  expect(await screen.findByRole("option", { name: "replica 17 (active)" })).toBeTruthy();
  const [slots, chosen, ...more] = ofReplicas().sort().reverse();
  expect([slots, chosen, more]).toEqual(["index=17&current=true", expect.stringMatching(/^fields=(?!.*ranks)/), []]);
});

it("of all its incarnations: again for what happens to a replica, and not for each event", () => {
  const event = (entity: string): Parameters<typeof affectedKeys>[0] => ({ seq: 1, job_id: "job_1", node_id: null, entity, entity_id: "x" }) as unknown as Parameters<typeof affectedKeys>[0];
  expect(affectedKeys(event("replica"))).toContainEqual(keys.incarnations("job_1"));
  expect(affectedKeys(event("checkpoint"))).not.toContainEqual(keys.incarnations("job_1"));
  expect(keys.incarnations("job_1").slice(0, 2)).not.toEqual([...keys.job("job_1")]);
});
