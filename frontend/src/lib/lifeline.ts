/* The lifeline's geometry: which bar of which lane lies where. Pure; times are Unix ms. */
import type { Replica } from "../api/types";

/** `state` "": which one it had is not kept. */
export type Lived = Omit<Replica, "state"> & { state: Replica["state"] | "" };

export interface Span {
  id: string;
  lane: number;
  incarnation: number;
  state: string;
  startMs: number;
  /** When it joined the view; null: never. Before that the bar is drawn thin. */
  joinedMs: number | null;
  endMs: number;
  open: boolean;
}

const ENDED = new Set(["evicted", "ended"]);

export function spansOf(replicas: readonly Lived[], nowMs: number): Span[] {
  return replicas
    .map((replica): Span => {
      const started = stamps(replica, "started_at");
      const joined = stamps(replica, "joined_at");
      const since = Date.parse(replica.state_since);
      const born = Date.parse(replica.created_at);
      const open = replica.current && !ENDED.has(replica.state);
      return {
        id: replica.id,
        lane: replica.index,
        incarnation: replica.incarnation,
        state: replica.state,
        startMs: Math.min(born, ...started),
        joinedMs: joined.length > 0 ? Math.max(...joined) : null,
        endMs: open ? nowMs : since,
        open,
      };
    })
    .sort((a, b) => a.lane - b.lane || a.startMs - b.startMs);
}

function stamps(replica: Lived, field: "started_at" | "joined_at"): number[] {
  return replica.ranks.map((rank) => Date.parse(rank[field] ?? "")).filter((ms) => !Number.isNaN(ms));
}

export interface Scale {
  fromMs: number;
  toMs: number;
  left: number;
  width: number;
}

/** Pixels from a moment, clamped to the plot. */
export function place(scale: Scale, ms: number): number {
  const ratio = (ms - scale.fromMs) / Math.max(1, scale.toMs - scale.fromMs);
  return scale.left + Math.min(1, Math.max(0, ratio)) * scale.width;
}

/** Round moments for the axis, at most `most` of them. */
export function ticks(fromMs: number, toMs: number, most: number): number[] {
  const nice = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 604_800].map((s) => s * 1000);
  const step = nice.find((s) => (toMs - fromMs) / s <= most) ?? nice[nice.length - 1]!;
  const out: number[] = [];
  for (let at = Math.ceil(fromMs / step) * step; at <= toMs; at += step) out.push(at);
  return out;
}
