/* The map of a fleet with more nodes than cards can show: a block a node on a canvas, a square a device, by segment; and
   the same as a table, the worst first. Read as columns, and again when something of a node has changed. */
import { useQuery } from "@tanstack/react-query";
import { type KeyboardEvent, memo, type MouseEvent, type ReactElement, useEffect, useMemo, useRef, useState } from "react";
import { Link, useNavigate, useSearchParams } from "react-router";
import * as queries from "../api/queries";
import { type BigNode, isBad, layoutOf, matching, NO_SEGMENT, nodeAt, nodesOf, segmentsOf, type Show, SHOWS, stepTo, summary, unhealthy, worstFirst } from "../lib/bigmap";
import { count, fixed } from "../lib/format";
import { useSetParam } from "../lib/params";
import { paths } from "../lib/paths";
import { useDark } from "../lib/settings";
import { useLive } from "../live/hooks";
import { live } from "../live/store";
import { Empty, Loaded, Panel, Skeleton } from "../ui/basics";
import { useWidth } from "../ui/drawing";
import { Scroll } from "../ui/Scroll";
import { SearchBox } from "../ui/SearchBox";
import { FORMS, Segments } from "../ui/Segments";
import { StateBadge } from "../ui/states";
import { BigLegend, paint } from "./BigMapParts";

/** The map is at most so high where it can be; below 3 px a device it is higher. */
const ROOM_PX = 560;
/** A change is shown after SOON_MS, and the fleet read no more often than each LEAST_MS. */
const SOON_MS = 400;
const LEAST_MS = 5_000;
const ROWS = 100;
const ORDERS = ["by name", "worst first"] as const;
const OF_NODES = new Set(["node", "device", "rank"]);

export function BigMap(): ReactElement {
  const query = useQuery(queries.columns());
  useChanges(query.dataUpdatedAt, query.refetch);
  const nodes = useMemo(() => (query.data ? nodesOf(query.data) : undefined), [query.data]);
  const [params] = useSearchParams();
  const set = useSetParam();
  const show = SHOWS.find((item) => item === params.get("show")) ?? "health";
  const table = params.get("map") === "table";
  const actions = (
    <>
      <Segments label="What the map shows" options={SHOWS} value={show} onChange={(item) => set("show", item)} />
      <Segments label="Form" options={FORMS} value={table ? "table" : "map"} onChange={(item) => set("map", item)} />
    </>
  );
  return (
    <Panel title="Nodes and devices" actions={actions}>
      <Loaded query={{ data: nodes, error: query.error, refetch: query.refetch }} skeleton={<Skeleton height={ROOM_PX} />}>
        {(all) => <Body all={all} show={show} table={table} />}
      </Loaded>
    </Panel>
  );
}

/** Reads again soon after an event about a node, a device or a rank, but not at each of many. */
function useChanges(readMs: number, refetch: () => unknown): void {
  const feed = useLive((state) => state.data.feed);
  const done = useRef<number | null>(null);
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  useEffect(() => {
    const before = done.current ?? feed[0]?.seq ?? 0;
    const news = feed.some((event) => event.seq > before && OF_NODES.has(event.entity ?? ""));
    done.current = Math.max(before, feed[0]?.seq ?? 0);
    if (!news || timer.current !== null) return;
    timer.current = setTimeout(() => {
      timer.current = null;
      /* A paused page asks nothing; all of it is read again when it goes on. */
      if (!live.paused) void refetch();
    }, Math.max(SOON_MS, readMs + LEAST_MS - Date.now()));
  }, [feed, readMs, refetch]);
  useEffect(() => () => {
    if (timer.current !== null) clearTimeout(timer.current);
    timer.current = null;
  }, []);
}

function Body({ all, show, table }: { all: BigNode[]; show: Show; table: boolean }): ReactElement {
  const [params] = useSearchParams();
  const set = useSetParam();
  const segment = params.get("segment") ?? "";
  const q = params.get("find") ?? "";
  const worst = params.get("sort") === "worst";
  const segments = useMemo(() => segmentsOf(all), [all]);
  const chosen = useMemo(() => matching(segments.find(({ name }) => name === segment)?.nodes ?? all, q), [all, segments, segment, q]);
  const sum = useMemo(() => summary(chosen), [chosen]);
  return (
    <>
      <div className="toolbar">
        {segments.length > 1 ? (
          <label className="field-inline">Segment{" "}
            <select aria-label="Segment" value={segment} onChange={(event) => set("segment", event.target.value)}>
              <option value="">all</option>
              {segments.map(({ name, nodes, bad }) => <option key={name} value={name}>{name}: {count(nodes.length)}{bad > 0 ? `, ${count(bad)} not well` : ""}</option>)}
            </select>
          </label>
        ) : null}
        {table || segments.length < 2 || segment !== "" ? null : (
          <Segments label="Order of the segments" options={ORDERS} value={worst ? "worst first" : "by name"} onChange={(item) => set("sort", item === "by name" ? "" : "worst")} />
        )}
        <SearchBox value={q} label="Find nodes" placeholder="Part of the name" onChange={(value) => set("find", value)} />
        <span className="muted" role="status">{inWords(sum, all.length)}</span>
      </div>
      {chosen.length === 0 ? <Empty icon="search" title="No node is both there and named so" /> : table ? <WorstTable nodes={chosen} /> : <Canvas nodes={chosen} show={show} worst={worst} label={inWords(sum, all.length)} />}
      {table ? null : <BigLegend show={show} />}
    </>
  );
}

function inWords(sum: ReturnType<typeof summary>, all: number): string {
  const of = sum.nodes === all ? `${count(all)} nodes` : `${count(sum.nodes)} of ${count(all)} nodes`;
  const said: [number, string][] = [[sum.lost, "off the bus"], [sum.unhealthy, "out of service"], [sum.atRisk, "at risk"]];
  const links: [number, string, string][] = [[sum.noLink, "node has no link", "nodes have no link"], [sum.noWork, "node receives no work", "nodes receive no work"]];
  const parts = said.filter(([n]) => n > 0).map(([n, what]) => `${count(n)} ${what}`);
  const nodes = links.filter(([n]) => n > 0).map(([n, one, many]) => `${count(n)} ${n === 1 ? one : many}`);
  return [`${of}, ${count(sum.devices)} devices`, ...parts, ...nodes].join("; ");
}

const Canvas = memo(function Canvas({ nodes, show, worst, label }: { nodes: BigNode[]; show: Show; worst: boolean; label: string }): ReactElement {
  const [box, width] = useWidth();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [at, setAt] = useState(-1);
  const [walked, setWalked] = useState(-1);
  const navigate = useNavigate();
  /* Columns carry no ids, which would be half of all bytes. */
  const open = (name: string): void => void navigate(paths.nodeNamed(name));
  const dark = useDark();
  const layout = useMemo(() => layoutOf(nodes, Math.max(120, width), ROOM_PX, worst), [nodes, width, worst]);
  const chosen = at < layout.nodes.length ? at : -1;
  useEffect(() => {
    if (canvas.current && width > 0) paint(canvas.current, layout, width, show);
  }, [layout, width, show, dark]);
  const mark = useRef<HTMLElement>(null);
  useEffect(() => {
    /* Braces: newer browsers answer with a promise, which is no clean-up. */
    mark.current?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [walked]);
  const under = (event: MouseEvent<HTMLCanvasElement>): number => nodeAt(layout, event.nativeEvent.offsetX, event.nativeEvent.offsetY);
  const onKey = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && chosen >= 0) open(layout.nodes[chosen]!.name);
    else if (["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) {
      const next = stepTo(layout, chosen, event.key);
      setAt(next);
      setWalked(next);
    } else return;
    event.preventDefault();
  };
  const node = layout.nodes[chosen];
  return (
    <>
      <div ref={box} className="bigmap" role="application" tabIndex={0} aria-label={`Map of the fleet: ${label}. Arrow keys choose a node, Enter opens it.`} onKeyDown={onKey}>
        <canvas
          ref={canvas}
          style={{ width: "100%", height: layout.height }}
          onMouseMove={(event) => setAt(under(event))}
          onClick={(event) => {
            const hit = under(event);
            if (hit >= 0) open(layout.nodes[hit]!.name);
          }}
        />
        {node ? <i ref={mark} className="bigmap-mark" style={{ left: layout.x[chosen]!, top: layout.y[chosen]!, width: layout.blockWidth + 1, height: layout.blockHeight + 1 }} /> : null}
      </div>
      <p className="bigmap-said" aria-live="polite">{node ? <Said node={node} /> : "Point at a block, or walk with the arrow keys, to read what it is."}</p>
    </>
  );
});

function Said({ node }: { node: BigNode }): ReactElement {
  const parts = [
    node.lost > 0 ? `${node.lost} off the bus` : "", unhealthy(node) > 0 ? `${unhealthy(node)} out of service` : "", node.atRisk > 0 ? `${node.atRisk} at risk` : "",
    `${node.busy} busy`, node.spare > 0 ? `${node.spare} spare` : "", `highest risk ${fixed(node.risk, 2)}`,
  ];
  return <><b>{node.name}</b> <StateBadge kind="node" state={node.state} compact /> {node.segment || NO_SEGMENT}{node.connected ? "" : ", no link"}; {count(node.devices)} devices: {parts.filter(Boolean).join(", ")}</>;
}

function WorstTable({ nodes }: { nodes: BigNode[] }): ReactElement {
  const [shown, setShown] = useState(ROWS);
  const rows = useMemo(() => worstFirst(nodes), [nodes]);
  return (
    <>
      <Scroll label="Nodes, the worst first">
        <table>
          <thead>
            <tr><th>Node</th><th>State</th><th>Link</th><th>Segment</th><th className="num">Devices</th><th className="num">Off the bus</th><th className="num">Out of service</th><th className="num">At risk</th><th className="num">Busy</th><th className="num">Spare</th><th className="num">Highest risk</th></tr>
          </thead>
          <tbody>
            {rows.slice(0, shown).map((node) => (
              <tr key={node.name}>
                <td>
                  <Link className="cell-name" to={paths.nodeNamed(node.name)}>{node.name}</Link>
                </td>
                <td><StateBadge kind="node" state={node.state} /></td>
                <td>{node.connected ? "linked" : <span className="text-bad">no link</span>}</td>
                <td>{node.segment || <span className="missing">{NO_SEGMENT}</span>}</td>
                <td className="num">{count(node.devices)}</td>
                <Bad n={node.lost} />
                <Bad n={unhealthy(node)} />
                <Bad n={node.atRisk} />
                <td className="num">{count(node.busy)}</td>
                <td className="num">{count(node.spare)}</td>
                <td className="num">{fixed(node.risk, 2)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {shown < rows.length ? (
        <div className="more">
          <span>Showing {count(shown)} of {count(rows.length)} nodes, the worst first; {count(nodes.filter(isBad).length)} are not well.</span>
          <button type="button" className="button" onClick={() => setShown(shown + ROWS)}>Show more</button>
        </div>
      ) : null}
    </>
  );
}

function Bad({ n }: { n: number }): ReactElement {
  return <td className={n > 0 ? "num text-bad" : "num"}>{count(n)}</td>;
}
