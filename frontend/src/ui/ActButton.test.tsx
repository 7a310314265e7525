/* A button cannot be pressed, and says why, where the object's state or the account's rights are against the act; no act is sent
   from the page that no such button stands before. */
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, render, screen } from "@testing-library/react";
import { afterEach, expect, it } from "vitest";
import { keys } from "../api/queries";
import { TO_ACT } from "../lib/needs.gen";
import type { Act } from "../lib/rights";
import { ActButton, ANYWHERE } from "./ActButton";

afterEach(cleanup);

const SCOPES = ["read", "submit", "operate", "admin"];
const who = (scope: string, projects: Record<string, string> = {}): unknown => ({ username: "bo", roles: SCOPES.slice(0, SCOPES.indexOf(scope) + 1), projects, demo: false, csrf: "" });

interface Seen {
  why: string;
  described: string;
  pressed: boolean;
}

function button(me: unknown, project: string | null | undefined | typeof ANYWHERE, why = "", does: Act = "/nodes/{node_id}:drain"): Seen {
  const client = new QueryClient({ defaultOptions: { queries: { staleTime: Infinity, retry: false } } });
  if (me !== undefined) client.setQueryData(keys.me, me);
  let pressed = false;
  render(<QueryClientProvider client={client}><ActButton does={does} of={{ capabilities: { drain: why } }} project={project} onPress={() => { pressed = true; }}>Drain</ActButton></QueryClientProvider>);
  const found = screen.getByRole<HTMLButtonElement>("button", { name: "Drain" });
  found.click();
  const described = document.getElementById(found.getAttribute("aria-describedby") ?? "")?.textContent ?? "";
  const off = found.getAttribute("aria-disabled") === "true";
  expect([found.disabled, off]).toEqual([false, described !== ""]);
  cleanup();
  return { why: found.title, described, pressed };
}

const seen = (why: string): Seen => ({ why, described: why, pressed: why === "" });
const CONFIRM = "/nodes/{node_id}:confirm";

it.each([
  [who("operate"), null, undefined, ""],
  [who("read"), null, undefined, "This needs the scope operate; you have read."],
  [who("operate"), null, CONFIRM, "This needs the scope admin; you have operate."],
  [who("read", { vision: "operate" }), "vision", undefined, ""],
  [who("operate", { vision: "read" }), "vision", undefined, "This needs the scope operate in the project vision; you have read."],
  [who("admin"), "vision", undefined, ""],
  [who("read"), undefined, undefined, ""],
  [who("read", { vision: "operate" }), ANYWHERE, undefined, ""],
  [who("read", { vision: "submit" }), ANYWHERE, undefined, "This needs the scope operate; you have read."],
  [undefined, null, undefined, ""],
] as const)("of %o in %s", (me, project, does, why) => {
  expect(button(me, project, "", does)).toEqual(seen(why));
});

it("says what the account may not before what cannot be done now", () => {
  expect(button(who("operate"), null, "it is drained")).toEqual(seen("it is drained"));
  expect(button(who("read"), null, "it is drained").why).toContain("you have read");
});

/** Sessions begin and end without a right. */
const FREE = ["/login", "/logout", "/password"];

it("stands before every act that the page sends", () => {
  const sources = import.meta.glob<string>(["../**/*.tsx", "!../**/*.test.tsx"], { query: "?raw", import: "default", eager: true });
  const text = Object.values(sources).join("\n");
  /* `:${word}` in a path is one of several words. */
  const sent = [...text.matchAll(/\b(?:post|sendRequest)\((?:"([^"]+)"|`([^`]+)`)/g)].flatMap(([, plain, made]) => {
    if (plain !== undefined) return [plain];
    const begins = made!.slice(0, made!.indexOf("${"));
    return Object.keys(TO_ACT).filter((act) => act.startsWith(begins) && text.includes(`"${act}"`));
  });
  const asked = new Set([...text.matchAll(/\bdoes="([^"]+)"/g)].map(([, act]) => act!));
  expect(sent.length).toBeGreaterThan(15);
  expect([...new Set(sent)].filter((act) => !FREE.includes(act) && !asked.has(act))).toEqual([]);
});
