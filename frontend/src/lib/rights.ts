/* What an account may do, as the server says of it: by its scope in the fleet and in each project. */
import type { Me } from "../api/types";
import { TO_ACT, type TO_READ } from "./needs.gen";

export type Scope = "read" | "submit" | "operate" | "admin";
export type Account = Pick<Me, "roles" | "projects">;
/** An operation that changes something, by its path; one that only reads, and needs more than to read. */
export type Act = keyof typeof TO_ACT;
export type GuardedRead = keyof typeof TO_READ;
const SCOPES: readonly string[] = ["read", "submit", "operate", "admin"];

/** What the server asks for an act, as its own document says. */
export const scopeOf = (does: Act): Scope => TO_ACT[does];

/** By which word the object itself says whether it can be done to it (`capabilities`): `cancel` of `/jobs/{job_id}:cancel`. */
export const wordOf = (does: Act): string => (does.includes("{") ? does.slice(does.indexOf(":") + 1) : "");

/** `project` null: on what belongs to the fleet. In a project that is not named for this account nothing may be done,
    unless it administers the fleet. */
export function may(me: Account | undefined, needed: Scope, project: string | null): boolean {
  if (!me) return false;
  if (me.roles.includes("admin")) return true;
  if (project === null) return me.roles.includes(needed);
  return SCOPES.indexOf(me.projects[project] ?? "") >= SCOPES.indexOf(needed);
}

/** Why this account may not, as the server says it in its refusal; "" where it may. `me` or `project` undefined: not known yet,
    so the server judges. */
export function whyMayNot(me: Account | undefined, needed: Scope, project: string | null | undefined): string {
  if (!me || project === undefined || may(me, needed, project)) return "";
  const held = project === null ? SCOPES.findLast((scope) => me.roles.includes(scope)) : me.projects[project];
  return `This needs the scope ${needed}${project === null ? "" : ` in the project ${project}`}; you have ${held ?? "none"}.`;
}

/** The same for what is not yet about one thing: "" where it may be done in the fleet or in any project. */
export function whyNowhere(me: Account | undefined, needed: Scope): string {
  const anywhere = [null, ...Object.keys(me?.projects ?? {})].some((project) => may(me, needed, project));
  return anywhere ? "" : whyMayNot(me, needed, null);
}
