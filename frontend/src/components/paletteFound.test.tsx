/* What stays in the palette while the answer to one more letter is on its way. */
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, cleanup, renderHook, waitFor } from "@testing-library/react";
import type { ReactNode } from "react";
import { afterEach, beforeEach, expect, it } from "vitest";
import { ofTerm } from "../lib/palette";
import { type Search, useFound } from "./paletteFound";

let server: Server;
let client: QueryClient;
let held: (() => void)[];
let hold: boolean;

beforeEach(async () => {
  [held, hold] = [[], false];
  server = createServer((request, response) => {
    const items = request.url!.startsWith("/api/v1/nodes") ? ["gpu-07", "gpu-17"].map((name) => ({ id: name, name, state: "ready", segment: "", capabilities: {} })) : [];
    const answer = (): void => void response.setHeader("content-type", "application/json").end(JSON.stringify({ items, next: null, as_of_seq: 1, total: items.length }));
    if (hold) held.push(answer);
    else answer();
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  (window as unknown as { happyDOM: { setURL: (url: string) => void } }).happyDOM.setURL(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
  client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
});
afterEach(async () => {
  cleanup();
  client.clear();
  server.closeAllConnections();
  await new Promise((done) => server.close(done));
});

const named = (search: Search, term: string): string[] => ofTerm(search.found, term).flatMap((of) => of.things.map((thing) => thing.name));

it("is what was found before and holds that letter too", async () => {
  const wrapper = ({ children }: { children: ReactNode }): ReactNode => <QueryClientProvider client={client}>{children}</QueryClientProvider>;
  const { result, rerender } = renderHook(({ text }) => useFound(text), { wrapper, initialProps: { text: "gpu" } });
  await waitFor(() => expect(named(result.current, "gpu")).toEqual(["gpu-07", "gpu-17"]));
  hold = true;
  rerender({ text: "gpu-1" });
  await waitFor(() => expect(held.length).toBeGreaterThan(0));
  expect(result.current.pending).toBe(true);
  expect(named(result.current, "gpu-1")).toEqual(["gpu-17"]);
  expect(result.current.found.map((of) => of.total)).toEqual([null, null, null]);
  await act(async () => held.splice(0).forEach((answer) => answer()));
  await waitFor(() => expect(result.current.pending).toBe(false));
});
