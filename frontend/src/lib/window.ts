/* Moments of a maintenance window: as a field has them, as the API takes them, and in words. */
import type { NodeEnd } from "../api/types";

const two = (value: number): string => String(value).padStart(2, "0");

/** So many hours later, in the form of a datetime-local field: local time, to the minute. */
export function inHours(now: Date, hours: number): string {
  const at = new Date(now.getTime() + hours * 3_600_000);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}T${two(at.getHours())}:${two(at.getMinutes())}`;
}

/** With its time zone; "" for what is no moment. */
export function instant(local: string): string {
  const at = new Date(local);
  return Number.isNaN(at.getTime()) ? "" : at.toISOString();
}

/** How a sentence about the end begins. */
export function endText(end: NodeEnd, now: Date): string {
  return new Date(end.leaves_at).getTime() > now.getTime() ? "Leaves" : "Away since";
}
