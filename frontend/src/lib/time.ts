/* The one time-zone switch. Every table, tooltip and chart axis goes through here. */
import { duration, MISSING } from "./format";

export type TimeMode = "local" | "utc" | "relative";

const two = (n: number): string => String(n).padStart(2, "0");

export function clock(ms: number, mode: TimeMode): string {
  const date = new Date(ms);
  if (mode === "local") return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}:${two(date.getUTCSeconds())}`;
}

function dayOf(ms: number, mode: TimeMode): string {
  const date = new Date(ms);
  if (mode === "local") return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${date.getUTCFullYear()}-${two(date.getUTCMonth() + 1)}-${two(date.getUTCDate())}`;
}

/** `nowMs` decides whether the day is shown, and is the origin of relative times. */
export function timeText(iso: string | null | undefined, mode: TimeMode, nowMs: number): string {
  if (!iso) return MISSING;
  const ms = Date.parse(iso);
  if (Number.isNaN(ms)) return MISSING;
  if (mode === "relative") return relative(ms, nowMs);
  const zone = mode === "utc" ? "Z" : "";
  const today = dayOf(ms, mode) === dayOf(nowMs, mode);
  return today ? `${clock(ms, mode)}${zone}` : `${dayOf(ms, mode)} ${clock(ms, mode)}${zone}`;
}

export function relative(ms: number, nowMs: number): string {
  const age = (nowMs - ms) / 1000;
  if (Math.abs(age) < 1) return "now";
  const whole = Math.abs(age) < 60 ? Math.round(Math.abs(age)) : Math.abs(age);
  return age >= 0 ? `${duration(whole).replace(".0", "")} ago` : `in ${duration(whole).replace(".0", "")}`;
}

/** The exact moment, for tooltips: both zones, to the millisecond. */
export function exactTime(iso: string): string {
  const date = new Date(iso);
  return Number.isNaN(date.getTime()) ? iso : `${date.toISOString()} (UTC) / ${date.toLocaleString("sv-SE")} (local)`;
}
