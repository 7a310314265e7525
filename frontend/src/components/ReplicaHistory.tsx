/* The history of a large job's replicas on a canvas: what small jobs show as a lifeline. Read without ranks, drawn in
   one go; arrow keys read slot by slot and incarnation by incarnation. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { type KeyboardEvent, type ReactElement, useEffect, useMemo, useRef, useState } from "react";
import * as queries from "../api/queries";
import type { Checkpoint, Decision, Incident, JobDetail } from "../api/types";
import { useNow } from "../lib/clock";
import { count, words } from "../lib/format";
import { type Bar, type BarKind, barsOf, historyLayout, type HistoryLayout, historySum, type Incarnation, incarnationsAt, piecesOf, rowOf, slotAt } from "../lib/history";
import { place, type Scale, ticks } from "../lib/lifeline";
import { useSetParam } from "../lib/params";
import { useDark, useSettings } from "../lib/settings";
import { clock, relative } from "../lib/time";
import { Empty, Loaded, Panel, Skeleton, Time } from "../ui/basics";
import { drawPixels, useWidth } from "../ui/drawing";
import { StateBadge } from "../ui/states";
import { useTimeRange } from "./TimeRange";

export const HISTORY = "History of the replicas";
const ROOM_PX = 360;
const TOP = 40;
const BOTTOM = 22;
const LEFT = 96;
const RIGHT = 12;
/** Bars end at now, which is taken anew so often: a drawing for each second would be work for nothing. */
const STEP_MS = 5_000;
const TOKENS: Record<BarKind, string> = { before: "--idle-solid", contributing: "--heat-2", starting: "--info-solid", "catching up": "--special-solid", suspect: "--warn-solid", evicted: "--bad-solid" };
const LEGEND: [BarKind, string][] = [
  ["contributing", "contributing"], ["starting", "starting"], ["catching up", "catching up"], ["suspect", "suspect"], ["before", "an earlier state, or an incarnation that is over"], ["evicted", "evicted"],
];

export interface Marks {
  incidents: Incident[];
  decisions: Decision[];
  checkpoints: Checkpoint[];
}

export function ReplicaHistory({ job, settled }: { job: JobDetail; settled: boolean }): ReactElement {
  const query = useQuery(queries.incarnations(job.id, settled));
  const incidents = useInfiniteQuery(queries.jobIncidents(job.id, settled)).data;
  const decisions = useInfiniteQuery(queries.jobDecisions(job.id, settled)).data;
  const checkpoints = useInfiniteQuery(queries.checkpoints(job.id, settled)).data;
  const marks = useMemo((): Marks => ({ incidents: queries.whole(incidents).rows, decisions: queries.whole(decisions).rows.filter((item) => !item.routine), checkpoints: queries.whole(checkpoints).rows }), [incidents, decisions, checkpoints]);
  const now = useNow();
  const toMs = job.finished_at ? Date.parse(job.finished_at) : Math.floor(now / STEP_MS) * STEP_MS;
  const bars = useMemo(() => barsOf(query.data ?? [], toMs), [query.data, toMs]);
  return (
    query.data ? <History job={job} bars={bars} marks={marks} toMs={toMs} /> : <Panel title={HISTORY}><Loaded query={query} skeleton={<Skeleton height={ROOM_PX} />}>{() => null}</Loaded></Panel>
  );
}

/** The same as of a moment. `states`: of the replicas, by id, as their newest summaries until then say. */
export function ReplicaHistoryAt({ job, states, marks, ms }: { job: JobDetail; states: ReadonlyMap<string, Pick<Incarnation, "state" | "state_since" | "current">>; marks: Marks; ms: number }): ReactElement {
  const query = useQuery(queries.incarnations(job.id, true));
  const bars = useMemo(() => barsOf(incarnationsAt(query.data ?? [], states, ms), ms), [query.data, states, ms]);
  return query.data ? <History job={job} bars={bars} marks={marks} toMs={ms} /> : <Panel title={HISTORY}><Loaded query={query} skeleton={<Skeleton height={ROOM_PX} />}>{() => null}</Loaded></Panel>;
}

function History({ job, bars, marks, toMs }: { job: JobDetail; bars: Bar[]; marks: Marks; toMs: number }): ReactElement {
  const set = useSetParam();
  const { rangeS, control } = useTimeRange();
  const firstMs = Math.min(Date.parse(job.created_at), toMs - 10_000);
  return (
    <Panel title={HISTORY} actions={control}>
      {bars.length === 0 ? <Empty icon="hourglass" title="No replica has been started yet">{job.why}</Empty> : (
        <>
          <p className="muted" role="status">{inWords(bars, marks)}</p>
          <Drawing bars={bars} marks={marks} fromMs={rangeS === null ? firstMs : toMs - rangeS * 1000} toMs={toMs} label={inWords(bars, marks)} onChoose={(slot) => set("replica", String(slot))} />
          <div className="map-legend">
            {LEGEND.map(([kind, what]) => <span key={kind} className="legend-mark"><i className="swatch" style={{ background: `var(${TOKENS[kind]})` }} /> {what}</span>)}
            <span className="legend-mark"><i className="swatch life-incident" /> incident</span>
            <span>Above: checkpoints, decisions. The newest incidents, decisions and checkpoints are drawn; all of them are in the lists below.</span>
          </div>
        </>
      )}
    </Panel>
  );
}

function inWords(bars: readonly Bar[], marks: Marks): string {
  const sum = historySum(bars);
  const open = marks.incidents.filter((incident) => incident.resolved_at === null).length;
  return [`${count(sum.slots)} replicas, ${count(sum.incarnations)} incarnations`, sum.evictions > 0 ? `${count(sum.evictions)} evicted` : "", sum.out > 0 ? `${count(sum.out)} without a running incarnation` : "", open > 0 ? `${count(open)} ${open === 1 ? "incident is" : "incidents are"} open` : ""].filter(Boolean).join("; ");
}

interface DrawingProps {
  bars: Bar[];
  marks: Marks;
  fromMs: number;
  toMs: number;
  label: string;
  onChoose: (slot: number) => void;
}

function Drawing({ bars, marks, fromMs, toMs, label, onChoose }: DrawingProps): ReactElement {
  const [box, width] = useWidth();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [at, setAt] = useState(-1);
  const dark = useDark();
  const { time } = useSettings();
  const layout = useMemo(() => historyLayout(bars, ROOM_PX), [bars]);
  const height = TOP + layout.height + BOTTOM;
  const scale = useMemo((): Scale => ({ fromMs, toMs, left: LEFT, width: Math.max(40, width - LEFT - RIGHT) }), [fromMs, toMs, width]);
  useEffect(() => {
    if (canvas.current && width > 0) paint(canvas.current, { bars, marks, layout, scale, width, height }, (ms) => (time === "relative" ? relative(ms, toMs) : clock(ms, time)));
  }, [bars, marks, layout, scale, width, height, time, toMs, dark]);
  const here = at < bars.length ? at : -1;
  const bar = bars[here];
  const onKey = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && bar) onChoose(bar.row.index);
    else {
      const next = stepTo(bars, here, event.key);
      if (next === null) return;
      setAt(next);
    }
    event.preventDefault();
  };
  const under = (x: number, y: number): number => barAt(bars, layout, scale, x, y - TOP);
  return (
    <>
      <div ref={box} className="bigmap" role="application" tabIndex={0} aria-label={`History of the replicas: ${label}. Up and down choose a replica, left and right an incarnation of it, Enter opens the replica.`} onKeyDown={onKey}>
        <canvas ref={canvas} style={{ width: "100%", height }} onMouseMove={(event) => setAt(under(event.nativeEvent.offsetX, event.nativeEvent.offsetY))} onClick={(event) => {
          const hit = bars[under(event.nativeEvent.offsetX, event.nativeEvent.offsetY)];
          if (hit) onChoose(hit.row.index);
        }} />
        {bar ? <i className="bigmap-mark" style={{ left: place(scale, bar.startMs) - 2, top: TOP + rowOf(layout, bar.row.index) * layout.rowPx - 2, width: Math.max(4, place(scale, bar.endMs) - place(scale, bar.startMs)) + 4, height: layout.rowPx + 4 }} /> : null}
      </div>
      <p className="bigmap-said" aria-live="polite">{bar ? <Said bar={bar} /> : "Point at a bar, or walk with the arrow keys, to read which incarnation it is."}</p>
    </>
  );
}

/** The bar that a key leads to; null where the key is none of ours. Up and down lead to the newest one of the next slot. */
function stepTo(bars: readonly Bar[], at: number, key: string): number | null {
  const of = (slot: number | undefined): number => bars.findLastIndex((bar) => bar.row.index === slot);
  const slot = bars[at]?.row.index;
  if (key === "ArrowRight" || key === "ArrowLeft") return Math.min(bars.length - 1, Math.max(0, at + (key === "ArrowRight" ? 1 : -1)));
  if (key === "ArrowDown") return at < 0 ? of(bars[0]?.row.index) : Math.max(at, of(bars[of(slot) + 1]?.row.index));
  if (key === "ArrowUp") return at < 0 ? 0 : Math.max(0, bars.findIndex((bar) => bar.row.index === slot) - 1);
  if (key === "Home") return 0;
  return key === "End" ? bars.length - 1 : null;
}

/** The incarnation that is drawn there; of those that lie on one another the newest. */
function barAt(bars: readonly Bar[], layout: HistoryLayout, scale: Scale, x: number, y: number): number {
  const slot = slotAt(layout, y);
  if (slot === null) return -1;
  const first = layout.slots.indexOf(slot);
  const last = layout.slots[Math.min(layout.slots.length, first + layout.perRow) - 1]!;
  return bars.findLastIndex((bar) => bar.row.index >= slot && bar.row.index <= last && place(scale, bar.startMs) - 2 <= x && x <= place(scale, bar.endMs) + 2);
}

interface Drawn {
  bars: readonly Bar[];
  marks: Marks;
  layout: HistoryLayout;
  scale: Scale;
  width: number;
  height: number;
}

function paint(canvas: HTMLCanvasElement, { bars, marks, layout, scale, width, height }: Drawn, label: (ms: number) => string): void {
  const inside = (ms: number): boolean => ms >= scale.fromMs && ms <= scale.toMs;
  const at = ticks(scale.fromMs, scale.toMs, Math.max(2, Math.floor(scale.width / 110)));
  const size = layout.rowPx > 4 ? layout.rowPx - 2 : layout.rowPx;
  const context = drawPixels(canvas, width, height, (fill) => {
    for (const ms of at) fill(place(scale, ms), TOP - 4, 1, layout.height + 8, "--line");
    for (const incident of marks.incidents) {
      const from = place(scale, Date.parse(incident.opened_at));
      const to = place(scale, incident.resolved_at ? Date.parse(incident.resolved_at) : scale.toMs);
      if (!incident.resolved_at || Date.parse(incident.resolved_at) >= scale.fromMs) fill(from, 0, Math.max(3, to - from), height - BOTTOM, "--bad-bg");
    }
    for (const item of marks.checkpoints) {
      const ms = Date.parse(item.committed_at ?? item.started_at);
      if (inside(ms)) fill(place(scale, ms) - 1, 4, 3, 12, item.state === "corrupt" ? "--bad-solid" : "--ok-solid");
    }
    for (const item of marks.decisions) if (inside(Date.parse(item.at))) fill(place(scale, Date.parse(item.at)) - 3, 23, 7, 7, "--special-solid");
    for (const piece of piecesOf(bars)) {
      if (piece.toMs < scale.fromMs) continue;
      const x = place(scale, piece.fromMs);
      fill(piece.kind === "evicted" ? x - 2 : x, TOP + rowOf(layout, piece.slot) * layout.rowPx, piece.kind === "evicted" ? 4 : Math.max(1, place(scale, piece.toMs) - x), size, TOKENS[piece.kind]);
    }
  });
  if (!context) return;
  context.fillText("checkpoints", 0, 14);
  context.fillText("decisions", 0, 31);
  const every = Math.max(1, Math.ceil(16 / layout.rowPx));
  for (let row = 0; row < layout.rows; row += every) context.fillText(`replica ${layout.slots[row * layout.perRow]}`, 0, TOP + row * layout.rowPx + Math.min(11, layout.rowPx + 6), LEFT - 8);
  context.textAlign = "center";
  for (const ms of at) context.fillText(label(ms), Math.min(place(scale, ms), width - 30), height - 6);
}

function Said({ bar: { row, open } }: { bar: Bar }): ReactElement {
  return (
    <>
      <b>Replica {row.index}, incarnation {row.incarnation}</b> of attempt {row.attempt} {row.state === "" ? <span className="missing">state not kept</span> : <><StateBadge kind="replica" state={row.state} compact /> since <Time at={row.state_since} /></>}; started <Time at={row.created_at} />{open ? "" : `, over: ${words(row.state)}`}
    </>
  );
}
