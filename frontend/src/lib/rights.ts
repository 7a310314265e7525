/* What an account may do, as the server says of it: by its scope in the fleet and in each project. */
import type { Me } from "../api/types";

export type Scope = "read" | "submit" | "operate" | "admin";
const SCOPES: readonly string[] = ["read", "submit", "operate", "admin"];

/** `project` null: on what belongs to the fleet. In a project that is not named for this account nothing may be done,
    unless it administers the fleet. */
export function may(me: Pick<Me, "roles" | "projects"> | undefined, needed: Scope, project: string | null): boolean {
  if (!me) return false;
  if (me.roles.includes("admin")) return true;
  if (project === null) return me.roles.includes(needed);
  return SCOPES.indexOf(me.projects[project] ?? "") >= SCOPES.indexOf(needed);
}

/** Why this account may not, as the server says it in its refusal; "" where it may. `me` or `project` undefined: not known yet,
    so the server judges. */
export function whyMayNot(me: Pick<Me, "roles" | "projects"> | undefined, needed: Scope, project: string | null | undefined): string {
  if (!me || project === undefined || may(me, needed, project)) return "";
  const held = project === null ? SCOPES.findLast((scope) => me.roles.includes(scope)) : me.projects[project];
  return `This needs the scope ${needed}${project === null ? "" : ` in the project ${project}`}; you have ${held ?? "none"}.`;
}
