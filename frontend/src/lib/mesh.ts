/* The ranks of a large job as a picture: a block a replica, a row a pipeline stage, a square a rank. Positions, classes and
   words; what is drawn of them is `components/JobMesh`. Pure. */
import { SILENT_S, LATE_S } from "./heard";
import { PITCHES } from "./bigmap";
import { STEPS } from "./heat";
import { median } from "./median";
import type { Words } from "./columns";

export interface MeshColumns {
  replica: number[];
  incarnation: number[];
  rank: number[];
  pp?: number[];
  tp?: number[];
  cp?: number[];
  ep?: number[];
  replica_dp?: number[];
  state: Words;
  phase: Words;
  step: (number | null)[];
  step_s: (number | null)[];
  heartbeat_age_s: (number | null)[];
  node_name: Words;
  device_index: number[];
}

export type MeshShow = "state" | "step time" | "heartbeat";
export const MESH_SHOWS: MeshShow[] = ["state", "step time", "heartbeat"];
const HEAD = 16;
const GAP = 8;
/** From the median of its stage on, and at SLOWEST times that, as the two ends of the colours. */
const SLOWEST = 1.5;

export type RankClass = "ended" | "hung" | "starting" | "saving" | "waiting" | "training" | "none" | "late" | "silent" | "heard" | `heat-${number}`;

/** Replicas of the picture, where each begins, and of each rank where its square is (px). */
export interface MeshLayout {
  x: Float64Array;
  y: Float64Array;
  blocks: { replica: number; x: number; y: number; width: number; height: number }[];
  pitch: number;
  height: number;
}

const wordAt = ({ words, at }: Words, row: number): string | null => {
  const place = at[row];
  return place === null || place === undefined ? null : (words[place] ?? null);
};

/** Where a rank stands in its replica: which stage, and its number within it. */
function placesOf(columns: MeshColumns): { row: Int32Array; column: Int32Array; rows: number; columns: number } {
  const count = columns.rank.length;
  const row = new Int32Array(count);
  const column = new Int32Array(count);
  const next = new Map<string, number>();
  let [rows, most] = [1, 1];
  for (let i = 0; i < count; i += 1) {
    const stage = columns.pp?.[i] ?? 0;
    const key = `${columns.replica[i]} ${stage}`;
    const at = next.get(key) ?? 0;
    next.set(key, at + 1);
    row[i] = stage;
    column[i] = at;
    rows = Math.max(rows, stage + 1);
    most = Math.max(most, at + 1);
  }
  return { row, column, rows, columns: most };
}

/** As large as fits into `room` px of height and into the width, and at least 3 px a rank. */
export function meshLayout(columns: MeshColumns, width: number, room: number): MeshLayout {
  const places = placesOf(columns);
  const replicas = [...new Set(columns.replica)].sort((a, b) => a - b);
  let last: MeshLayout | undefined;
  for (const pitch of PITCHES) {
    last = laidOut(columns, places, replicas, width, pitch);
    if (last.height <= room && places.columns * pitch <= width) break;
  }
  return last!;
}

function laidOut(columns: MeshColumns, places: ReturnType<typeof placesOf>, replicas: number[], width: number, pitch: number): MeshLayout {
  const blockWidth = places.columns * pitch;
  const blockHeight = places.rows * pitch;
  const across = Math.max(1, Math.floor((width + GAP) / (Math.max(blockWidth, 72) + GAP)));
  const stepX = Math.max(blockWidth, 72) + GAP;
  const stepY = HEAD + blockHeight + GAP;
  const blocks = replicas.map((replica, i) => ({ replica, x: (i % across) * stepX, y: Math.floor(i / across) * stepY, width: blockWidth, height: HEAD + blockHeight }));
  const at = new Map(blocks.map((block) => [block.replica, block]));
  const x = new Float64Array(columns.rank.length);
  const y = new Float64Array(columns.rank.length);
  for (let i = 0; i < x.length; i += 1) {
    const block = at.get(columns.replica[i]!)!;
    x[i] = block.x + places.column[i]! * pitch;
    y[i] = block.y + HEAD + places.row[i]! * pitch;
  }
  return { x, y, blocks, pitch, height: Math.ceil(replicas.length / across) * stepY };
}

/** The rank under this point; -1: none. */
export function rankAt(layout: MeshLayout, x: number, y: number): number {
  for (let i = 0; i < layout.x.length; i += 1) {
    if (x >= layout.x[i]! && x < layout.x[i]! + layout.pitch && y >= layout.y[i]! && y < layout.y[i]! + layout.pitch) return i;
  }
  return -1;
}

/** The median step time of each stage, of the ranks that have one. */
export function stageMedians(columns: MeshColumns): Map<number, number> {
  const found = new Map<number, number[]>();
  columns.step_s.forEach((seconds, i) => {
    if (seconds === null) return;
    const stage = columns.pp?.[i] ?? 0;
    const known = found.get(stage);
    if (known) known.push(seconds);
    else found.set(stage, [seconds]);
  });
  return new Map([...found].map(([stage, values]) => [stage, median(values)!]));
}

const OF_STATE: Record<string, RankClass> = { exited: "ended", hung: "hung", launching: "starting", initializing: "starting", checkpointing: "saving" };
/** Phases in which a rank waits for others. */
const WAITS = new Set(["parked", "exchange", "view_change"]);

/** Null: no live state of it is known. */
const ofPhase = (phase: string | null): RankClass => (phase === null ? "none" : WAITS.has(phase) ? "waiting" : "training");

export function classOf(columns: MeshColumns, i: number, show: MeshShow, medians: Map<number, number>): RankClass {
  const state = wordAt(columns.state, i) ?? "";
  if (state === "exited") return "ended";
  if (show === "state") return OF_STATE[state] ?? ofPhase(wordAt(columns.phase, i));
  if (show === "heartbeat") {
    const age = columns.heartbeat_age_s[i] ?? null;
    return age === null ? "none" : age > SILENT_S ? "silent" : age > LATE_S ? "late" : "heard";
  }
  const seconds = columns.step_s[i] ?? null;
  const usual = medians.get(columns.pp?.[i] ?? 0);
  if (seconds === null || usual === undefined || usual <= 0) return "none";
  const slow = (seconds / usual - 1) / (SLOWEST - 1);
  return `heat-${Math.min(STEPS - 1, Math.max(0, Math.floor(slow * STEPS)))}`;
}

export interface MeshRankWords {
  replica: number;
  rank: number;
  place: string;
  state: string;
  phase: string | null;
  step: number | null;
  stepS: number | null;
  heartbeatAgeS: number | null;
  node: string;
  device: number;
}

/** One rank, for those who read. */
export function rankOf(columns: MeshColumns, i: number): MeshRankWords {
  const names = ["pp", "tp", "cp", "ep", "replica_dp"] as const;
  const place = names.filter((name) => columns[name] !== undefined).map((name) => `${name === "replica_dp" ? "dp" : name} ${columns[name]![i]}`);
  return {
    replica: columns.replica[i]!, rank: columns.rank[i]!, place: place.join(", "), state: wordAt(columns.state, i) ?? "", phase: wordAt(columns.phase, i), step: columns.step[i] ?? null,
    stepS: columns.step_s[i] ?? null, heartbeatAgeS: columns.heartbeat_age_s[i] ?? null, node: wordAt(columns.node_name, i) ?? "", device: columns.device_index[i]!,
  };
}

/** How many ranks are of each class. */
export function counted(columns: MeshColumns, show: MeshShow): Map<RankClass, number> {
  const medians = stageMedians(columns);
  const found = new Map<RankClass, number>();
  for (let i = 0; i < columns.rank.length; i += 1) {
    const name = classOf(columns, i, show, medians);
    found.set(name, (found.get(name) ?? 0) + 1);
  }
  return found;
}
