/* The life of a job: a lane a replica slot, a bar an incarnation; above them checkpoints,
   decisions and incidents. One chart of what broke, what was done and how long it took. */
import { type ReactElement, useEffect, useMemo, useRef, useState } from "react";
import { Link } from "react-router";
import type { Checkpoint, Decision, Incident } from "../api/types";
import { useNow } from "../lib/clock";
import { words } from "../lib/format";
import { type Lived, place, type Scale, type Span, spansOf, ticks } from "../lib/lifeline";
import { paths } from "../lib/paths";
import { useSettings } from "../lib/settings";
import { clock, relative } from "../lib/time";
import { Panel } from "../ui/basics";
import { styleOf } from "../ui/states";
import { useTimeRange } from "./TimeRange";

export const LIFELINE = "Lifeline of the replicas";
const LANE = 30;
const TOP = 58;
const LEFT = 78;
/* Half of the widest label of the axis: the last one is not cut off. */
const TICK_HALF = 30;

interface LifelineProps {
  replicas: Lived[];
  incidents: Incident[];
  decisions: Decision[];
  checkpoints: Checkpoint[];
  startedAt: string;
  finishedAt: string | null;
  /** What of the past has not been read yet, and how to read on; null: all is drawn. */
  older: { what: string; read: () => void } | null;
}

export function Lifeline(props: LifelineProps): ReactElement {
  const { rangeS, control } = useTimeRange();
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(900);
  useEffect(() => {
    if (!box.current) return undefined;
    const observer = new ResizeObserver(([entry]) => entry && setWidth(Math.max(300, entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  return (
    <Panel title={LIFELINE} actions={control}>
      <div ref={box} className="lifeline"><Drawing {...props} width={width} rangeS={rangeS} /></div>
      <div className="map-legend">
        <span className="legend-mark"><i className="swatch life-ok" /> contributing</span>
        <span className="legend-mark"><i className="swatch life-thin" /> starting</span>
        <span className="legend-mark"><i className="swatch life-special" /> catching up</span>
        <span className="legend-mark"><i className="swatch life-past" /> an earlier incarnation, until it was evicted (cross) or its attempt was over (line)</span>
        {props.replicas.some((replica) => replica.state === "") ? <span className="legend-mark"><i className="swatch life-idle" /> state not kept</span> : null}
        <span className="legend-mark"><i className="swatch life-incident" /> incident</span>
        <span>diamond: decision</span><span>tick: checkpoint</span>
        {props.older ? <button type="button" className="button small" onClick={props.older.read}>Draw older {props.older.what} too</button> : null}
      </div>
    </Panel>
  );
}

function Drawing(props: LifelineProps & { width: number; rangeS: number | null }): ReactElement {
  const now = useNow();
  const { time } = useSettings();
  const toMs = props.finishedAt ? Date.parse(props.finishedAt) : now;
  const spans = useMemo(() => spansOf(props.replicas, toMs), [props.replicas, toMs]);
  const first = Math.min(Date.parse(props.startedAt), ...spans.map((span) => span.startMs));
  const fromMs = props.rangeS === null ? Math.min(first, toMs - 10_000) : toMs - props.rangeS * 1000;
  const scale: Scale = { fromMs, toMs, left: LEFT, width: props.width - LEFT - 12 };
  const lanes = [...new Set(spans.map((span) => span.lane))];
  const height = TOP + Math.max(1, lanes.length) * LANE + 24;
  const inside = (iso: string): boolean => Date.parse(iso) >= fromMs && Date.parse(iso) <= toMs;
  const label = (ms: number): string => (time === "relative" ? relative(ms, now) : clock(ms, time));
  return (
    <svg width={props.width} height={height} role="group" aria-label={`Lifeline: ${lanes.length} replica slots, ${spans.length} incarnations, ${props.incidents.length} incidents`}>
      {ticks(fromMs, toMs, Math.max(2, Math.floor(scale.width / 110))).map((at) => (
        <g key={at} className="life-tick">
          <line x1={place(scale, at)} x2={place(scale, at)} y1={TOP - 6} y2={height - 20} />
          <text x={Math.min(place(scale, at), props.width - TICK_HALF)} y={height - 6} textAnchor="middle">{label(at)}</text>
        </g>
      ))}
      {props.incidents.filter((incident) => Date.parse(incident.resolved_at ?? new Date(toMs).toISOString()) >= fromMs).map((incident) => (
        <IncidentBand key={incident.id} incident={incident} scale={scale} toMs={toMs} height={height} />
      ))}
      <text className="life-label" x={0} y={16}>checkpoints</text>
      <text className="life-label" x={0} y={38}>decisions</text>
      {props.checkpoints.filter((item) => inside(item.committed_at ?? item.started_at)).map((item) => (
        <rect key={item.id} className={item.state === "corrupt" ? "life-ckpt-bad" : "life-ckpt"} x={place(scale, Date.parse(item.committed_at ?? item.started_at)) - 2} y={6} width={4} height={13} rx={1}>
          <title>{`checkpoint at step ${item.step}: ${words(item.state)}`}</title>
        </rect>
      ))}
      {props.decisions.filter((item) => !item.routine && inside(item.at)).map((item) => (
        <Link key={item.id} to={paths.decision(item.id)} aria-label={`Decision: ${words(item.choice)}`}>
          <rect className="life-decision" x={place(scale, Date.parse(item.at)) - 5} y={28} width={10} height={10} transform={`rotate(45 ${place(scale, Date.parse(item.at))} 33)`}>
            <title>{`${words(item.choice)}: ${item.sentence}`}</title>
          </rect>
        </Link>
      ))}
      {lanes.map((lane, row) => <text key={lane} className="life-label" x={0} y={TOP + row * LANE + 18}>replica {lane}</text>)}
      {spans.filter((span) => span.endMs >= fromMs).map((span) => <SpanBar key={span.id} span={span} y={TOP + lanes.indexOf(span.lane) * LANE} scale={scale} />)}
    </svg>
  );
}

function IncidentBand({ incident, scale, toMs, height }: { incident: Incident; scale: Scale; toMs: number; height: number }): ReactElement {
  const from = place(scale, Date.parse(incident.opened_at));
  const to = place(scale, incident.resolved_at ? Date.parse(incident.resolved_at) : toMs);
  return (
    <Link to={paths.incident(incident.id)} aria-label={`Incident: ${incident.title}`}>
      <rect className="life-band" x={from} y={0} width={Math.max(3, to - from)} height={height - 20}><title>{incident.title}</title></rect>
    </Link>
  );
}

function SpanBar({ span, y, scale }: { span: Span; y: number; scale: Scale }): ReactElement {
  const x1 = place(scale, span.startMs);
  const x2 = Math.max(x1 + 2, place(scale, span.endMs));
  const joined = span.joinedMs === null ? x2 : Math.min(x2, Math.max(x1, place(scale, span.joinedMs)));
  const tone = span.state === "evicted" ? "bad" : styleOf("replica", span.state).tone;
  const fill = span.open || span.state === "" ? tone : "past";
  return (
    <g>
      <title>{`replica ${span.lane}, incarnation ${span.incarnation}: ${span.state === "" ? "state not kept" : words(span.state)}`}</title>
      <rect className="life-start" x={x1} y={y + 10} width={Math.max(0, joined - x1)} height={6} rx={2} />
      <rect className={`life-${fill}`} x={joined} y={y + 4} width={Math.max(0, x2 - joined)} height={18} rx={3} />
      {span.open || span.state === "" ? null : <path className="life-end" role="img" aria-label={span.state === "evicted" ? "evicted" : "ended"} d={span.state === "ended" ? `M${x2} ${y + 4}v18` : `M${x2 - 4} ${y + 9}l8 8m0 -8l-8 8`} />}
      {x2 - joined > 34 ? <text className="life-text" x={joined + 6} y={y + 17}>#{span.incarnation}</text> : null}
    </g>
  );
}
