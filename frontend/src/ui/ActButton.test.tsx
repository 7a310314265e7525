/* A button is disabled, and says why, where the object's state or the account's rights are against the act. */
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, render, screen } from "@testing-library/react";
import { afterEach, expect, it } from "vitest";
import { keys } from "../api/queries";
import type { Scope } from "../lib/rights";
import { ActButton } from "./ActButton";

afterEach(cleanup);

const SCOPES = ["read", "submit", "operate", "admin"];
const who = (scope: string, projects: Record<string, string> = {}): unknown => ({ username: "bo", roles: SCOPES.slice(0, SCOPES.indexOf(scope) + 1), projects, demo: false, csrf: "" });

function button(me: unknown, project: string | null | undefined, why = "", needs?: Scope): { disabled: boolean; title: string } {
  const client = new QueryClient({ defaultOptions: { queries: { staleTime: Infinity, retry: false } } });
  if (me !== undefined) client.setQueryData(keys.me, me);
  render(<QueryClientProvider client={client}><ActButton of={{ capabilities: { drain: why } }} act="drain" project={project} needs={needs} onPress={() => undefined}>Drain</ActButton></QueryClientProvider>);
  const { disabled, title } = screen.getByRole<HTMLButtonElement>("button", { name: "Drain" });
  cleanup();
  return { disabled, title };
}

it.each([
  [who("operate"), null, undefined, ""],
  [who("read"), null, undefined, "This needs the scope operate; you have read."],
  [who("operate"), null, "admin" as const, "This needs the scope admin; you have operate."],
  [who("read", { vision: "operate" }), "vision", undefined, ""],
  [who("operate", { vision: "read" }), "vision", undefined, "This needs the scope operate in the project vision; you have read."],
  [who("admin"), "vision", undefined, ""],
  [who("read"), undefined, undefined, ""],
  [undefined, null, undefined, ""],
])("of %o in %s", (me, project, needs, title) => {
  expect(button(me, project, "", needs)).toEqual({ disabled: title !== "", title });
});

it("says what the account may not before what cannot be done now", () => {
  expect(button(who("operate"), null, "it is drained")).toEqual({ disabled: true, title: "it is drained" });
  expect(button(who("read"), null, "it is drained").title).toContain("you have read");
});
