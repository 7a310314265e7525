/* The map of a large fleet: a block a node, a square a device, grouped by segment. Positions, classes and order; what is
   drawn of them is `components/BigMap`. Pure. */
import type { NodeState } from "../api/types";
import type { Words } from "./columns";
import { STEPS } from "./heat";

export interface FleetColumns {
  name: string[];
  state: Words;
  segment: Words;
  connected: boolean[];
  devices: number[];
  devices_healthy: number[];
  devices_at_risk: number[];
  devices_lost: number[];
  devices_busy: number[];
  devices_spare: number[];
  risk: (number | null)[];
}

/** What the map asks for of each node. */
export const FIELDS: readonly (keyof FleetColumns)[] = [
  "name", "state", "segment", "connected", "devices", "devices_healthy", "devices_at_risk", "devices_lost", "devices_busy", "devices_spare", "risk",
];

export interface BigNode {
  name: string;
  state: NodeState;
  segment: string;
  connected: boolean;
  devices: number;
  healthy: number;
  atRisk: number;
  lost: number;
  busy: number;
  spare: number;
  risk: number | null;
}

export type Show = "health" | "use" | "risk";
export const SHOWS: Show[] = ["health", "use", "risk"];
export const NO_SEGMENT = "no segment";

export type CellClass = "lost" | "unhealthy" | "at-risk" | "healthy" | "busy" | "spare" | "free" | "none" | `heat-${number}`;

export function nodesOf(columns: FleetColumns): BigNode[] {
  const word = ({ words, at }: Words, row: number): string => {
    const place = at[row];
    return place === null || place === undefined ? "" : (words[place] ?? "");
  };
  return columns.name.map((name, row) => ({
    name,
    state: word(columns.state, row) as NodeState,
    segment: word(columns.segment, row),
    connected: columns.connected[row]!,
    devices: columns.devices[row]!,
    healthy: columns.devices_healthy[row]!,
    atRisk: columns.devices_at_risk[row]!,
    lost: columns.devices_lost[row]!,
    busy: columns.devices_busy[row]!,
    spare: columns.devices_spare[row]!,
    risk: columns.risk[row] ?? null,
  }));
}

/** Not in service, though they are there. */
export const unhealthy = (node: BigNode): number => node.devices - node.healthy - node.lost;

/** How many squares of each class a node has, the worst first; they are not numbered: which device it is the node's page says. */
export function squares(node: BigNode, show: Show): [CellClass, number][] {
  switch (show) {
    case "health":
      return [["lost", node.lost], ["unhealthy", unhealthy(node)], ["at-risk", node.atRisk], ["healthy", node.healthy - node.atRisk]];
    case "use":
      return [["busy", node.busy], ["spare", node.spare], ["free", node.devices - node.busy - node.spare]];
    case "risk":
      return [[node.risk === null ? "none" : `heat-${Math.min(STEPS - 1, Math.floor(node.risk * STEPS))}`, node.devices]];
  }
}

/** Greater is worse: what is off the bus, what is out of service, who has no link, who takes no work, then by risk. */
function badness(node: BigNode): readonly number[] {
  return [node.lost, unhealthy(node), node.connected ? 0 : 1, node.state === "ready" ? 0 : 1, node.atRisk, node.risk ?? -1];
}

/** Worst first; of those alike in the order given. */
export function worstFirst(nodes: readonly BigNode[]): BigNode[] {
  const rated = nodes.map((node, at) => ({ node, at, bad: badness(node) }));
  rated.sort((a, b) => {
    const first = a.bad.findIndex((value, i) => value !== b.bad[i]);
    return first < 0 ? a.at - b.at : b.bad[first]! - a.bad[first]!;
  });
  return rated.map(({ node }) => node);
}

/** Whether anything of it is not as it should be. */
export const isBad = (node: BigNode): boolean => badness(node).slice(0, 5).some((value) => value > 0);

/** Segments by name, with their nodes and how many of these are not as they should be. */
export function segmentsOf(nodes: readonly BigNode[]): { name: string; nodes: BigNode[]; bad: number }[] {
  const found = new Map<string, BigNode[]>();
  for (const node of nodes) {
    const name = node.segment || NO_SEGMENT;
    const known = found.get(name);
    if (known) known.push(node);
    else found.set(name, [node]);
  }
  const names = [...found.keys()].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
  return names.map((name) => ({ name, nodes: found.get(name)!, bad: found.get(name)!.filter(isBad).length }));
}

/** Of two squares on a canvas (px), the largest first. */
export const PITCHES = [14, 12, 10, 8, 6, 5, 4, 3];
const GAP = 3;
export const HEAD = 18;

export interface Group {
  name: string;
  y: number;
  count: number;
  bad: number;
}

/** In px: node i's block begins at `x[i]`, `y[i]`; its squares are `pitch` apart, `across` in a row. */
export interface Layout {
  nodes: BigNode[];
  x: Float64Array;
  y: Float64Array;
  groups: Group[];
  pitch: number;
  across: number;
  blockWidth: number;
  blockHeight: number;
  height: number;
}

/** As large as fits into `room` px of height, and at least 3 px a device. A head above each segment where there are several;
    `worst`: those with the most nodes that are not well come first. */
export function layoutOf(nodes: readonly BigNode[], width: number, room: number, worst = false): Layout {
  const groups = segmentsOf(nodes);
  if (worst) groups.sort((a, b) => b.bad - a.bad);
  const most = nodes.reduce((max, node) => Math.max(max, node.devices), 1);
  let last: Layout | undefined;
  for (const pitch of PITCHES) {
    last = laidOut(groups, most, width, pitch);
    if (last.height <= room) break;
  }
  return last!;
}

function laidOut(groups: ReturnType<typeof segmentsOf>, most: number, width: number, pitch: number): Layout {
  const across = most <= 4 ? most : Math.ceil(most / 2);
  const blockWidth = across * pitch + GAP;
  const blockHeight = Math.ceil(most / across) * pitch + GAP;
  const columns = Math.max(1, Math.floor(width / blockWidth));
  const nodes = groups.flatMap((group) => group.nodes);
  const x = new Float64Array(nodes.length);
  const y = new Float64Array(nodes.length);
  const heads: Group[] = [];
  let top = 0;
  let at = 0;
  for (const group of groups) {
    if (groups.length > 1) {
      heads.push({ name: group.name, y: top, count: group.nodes.length, bad: group.bad });
      top += HEAD;
    }
    for (let i = 0; i < group.nodes.length; i += 1, at += 1) {
      x[at] = (i % columns) * blockWidth;
      y[at] = top + Math.floor(i / columns) * blockHeight;
    }
    top += Math.ceil(group.nodes.length / columns) * blockHeight + GAP;
  }
  return { nodes, x, y, groups: heads, pitch, across, blockWidth, blockHeight, height: top };
}

/** The node at this point; -1: none. */
export function nodeAt(layout: Layout, x: number, y: number): number {
  /* Blocks stand in rows: the last row that begins at or above the point, by bisection, then its columns. */
  let low = 0;
  let high = layout.nodes.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (layout.y[middle]! <= y) low = middle + 1;
    else high = middle;
  }
  for (let at = low - 1; at >= 0 && y - layout.y[at]! < layout.blockHeight; at -= 1) {
    if (x >= layout.x[at]! && x < layout.x[at]! + layout.blockWidth) return at;
  }
  return -1;
}

/** Where an arrow key leads from a node: along the row, or to the nearest block of the next row. */
export function stepTo(layout: Layout, at: number, key: string): number {
  const last = layout.nodes.length - 1;
  if (at < 0) return last < 0 ? -1 : 0;
  if (key === "ArrowRight") return Math.min(last, at + 1);
  if (key === "ArrowLeft") return Math.max(0, at - 1);
  if (key === "Home") return 0;
  if (key === "End") return last;
  const down = key === "ArrowDown";
  let i = at;
  while (i >= 0 && i <= last && layout.y[i] === layout.y[at]) i += down ? 1 : -1;
  if (i < 0 || i > last) return at;
  const row = layout.y[i];
  let best = i;
  for (; i >= 0 && i <= last && layout.y[i] === row; i += down ? 1 : -1) {
    if (Math.abs(layout.x[i]! - layout.x[at]!) < Math.abs(layout.x[best]! - layout.x[at]!)) best = i;
  }
  return best;
}

/** The whole of it in words, for those who cannot see it, and beside it. */
export function summary(nodes: readonly BigNode[]): { nodes: number; devices: number; lost: number; unhealthy: number; atRisk: number; noLink: number; noWork: number } {
  const total = { nodes: nodes.length, devices: 0, lost: 0, unhealthy: 0, atRisk: 0, noLink: 0, noWork: 0 };
  for (const node of nodes) {
    total.devices += node.devices;
    total.lost += node.lost;
    total.unhealthy += unhealthy(node);
    total.atRisk += node.atRisk;
    total.noLink += node.connected ? 0 : 1;
    total.noWork += node.state === "ready" || node.state === "degraded" ? 0 : 1;
  }
  return total;
}

/** The part of the name that is searched for, in either case. */
export function matching(nodes: readonly BigNode[], q: string): BigNode[] {
  const wanted = q.trim().toLowerCase();
  return wanted === "" ? [...nodes] : nodes.filter((node) => node.name.toLowerCase().includes(wanted));
}
