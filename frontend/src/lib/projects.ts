/* Projects in words and figures. */
import type { Project } from "../api/types";

/** A limit in GPUs; null has none. */
export function limitText(limit: number | null): string {
  return limit === null ? "no limit" : String(limit);
}

/** How many GPUs it lends others; one without a quota has none of its own to lend. */
export function lendsText(project: Pick<Project, "quota_gpus" | "lend_limit_gpus">): string {
  return project.quota_gpus === null ? "none" : limitText(project.lend_limit_gpus);
}

/** How full the quota is, from 0 on; null where there is none. A quota of 0 is full as soon as something is used. */
export function fullness(project: Pick<Project, "quota_gpus" | "in_use_gpus">): number | null {
  if (project.quota_gpus === null) return null;
  if (project.quota_gpus === 0) return project.in_use_gpus > 0 ? 1 : 0;
  return project.in_use_gpus / project.quota_gpus;
}

const SEEN_BY: Record<string, string> = {
  private: "its members read it",
  visible: "every account reads it, its members work in it",
  open: "every account may do in it what its scope says",
};

/** Who reads and uses it, in words. */
export function visibilityText(visibility: string): string {
  return SEEN_BY[visibility] ?? visibility;
}

/** Stands for the id of a job in a project that is not seen: there is no page of it. */
export const UNSEEN = "unseen";
