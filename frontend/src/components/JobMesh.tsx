/* A large job's ranks on a canvas: a block a replica, a row a pipeline stage, a square a rank; who is slowest and most silent
   beside it, and one replica at a time as a table. Read as columns, each few seconds. */
import { useQuery } from "@tanstack/react-query";
import { type KeyboardEvent, memo, type MouseEvent, type ReactElement, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { useSearchParams } from "react-router";
import * as queries from "../api/queries";
import type { JobDetail, JobMesh as Mesh, Rank, Replica } from "../api/types";
import { count, duration, MISSING, words } from "../lib/format";
import { classOf, counted, type MeshColumns, MESH_SHOWS, meshLayout, type MeshLayout, type MeshShow, rankAt, rankOf, type RankClass, stageMedians } from "../lib/mesh";
import { STEPS } from "../lib/heat";
import { useSetParam } from "../lib/params";
import { useDark } from "../lib/settings";
import { Empty, Loaded, Panel, Skeleton } from "../ui/basics";
import { drawPixels, useWidth } from "../ui/drawing";
import { Scroll } from "../ui/Scroll";
import { Segments } from "../ui/Segments";
import { StateBadge, styleOf } from "../ui/states";
import { ReplicaGrid } from "./ReplicaGrid";

const ROOM_PX = 420;

const TOKENS: Record<Exclude<RankClass, `heat-${number}`>, string> = {
  ended: "--idle-solid", hung: "--bad-solid", starting: "--info-solid", saving: "--special-solid", waiting: "--line-strong", training: "--heat-2", none: "--line", late: "--warn-solid",
  silent: "--bad-solid", heard: "--heat-2",
};
const WORDS: Record<MeshShow, [Exclude<RankClass, `heat-${number}`>, string][]> = {
  state: [["training", "at work"], ["waiting", "waits for others"], ["starting", "starting"], ["saving", "saving"], ["hung", "hung"], ["none", "not reported"], ["ended", "ended"]],
  "step time": [["none", "not measured yet"], ["ended", "ended"]],
  heartbeat: [["heard", "heard"], ["late", "late"], ["silent", "silent"], ["none", "not reported"], ["ended", "ended"]],
};

interface Props {
  job: JobDetail;
  settled: boolean;
  onEvict: (replica: Replica) => void;
  onLogs: (rank: Rank) => void;
}

export function JobMesh(props: Props): ReactElement {
  const { job, settled } = props;
  const query = useQuery(queries.mesh(job.id, settled));
  const [params] = useSearchParams();
  const set = useSetParam();
  const show = MESH_SHOWS.find((item) => item === params.get("ranks")) ?? "state";
  const choose = useCallback((replica: number) => set("replica", String(replica)), [set]);
  const chosen = /^\d+$/.test(params.get("replica") ?? "") ? Number(params.get("replica")) : null;
  const actions = (
    <Segments label="What the squares show" options={MESH_SHOWS} value={show} onChange={(item) => set("ranks", item)} />
  );
  return (
    <>
      <Panel title="Replicas and ranks" actions={actions}>
        <Loaded query={query} skeleton={<Skeleton height={ROOM_PX} />}>
          {(mesh) => (mesh.ranks === 0 ? <Empty icon="hourglass" title="No replica has been started yet">{job.why}</Empty> : (
            <Drawn mesh={mesh} show={show} chosen={chosen} onChoose={choose} />
          ))}
        </Loaded>
      </Panel>
      {chosen === null ? null : <OneReplica {...props} index={chosen} onClose={() => set("replica", "")} />}
    </>
  );
}

/** Not again with each second of the page's clock: what is counted is every rank. */
const Drawn = memo(function Drawn({ mesh, show, chosen, onChoose }: { mesh: Mesh; show: MeshShow; chosen: number | null; onChoose: (replica: number) => void }): ReactElement {
  const label = inWords(mesh, show);
  return (
    <>
      <p className="muted" role="status">{label}</p>
      <MeshCanvas mesh={mesh} show={show} label={label} chosen={chosen} onChoose={onChoose} />
      <Legend show={show} />
      <div className="grid-2">
        <Worst title="Slowest" rows={mesh.slowest} of={(rank) => duration(rank.step_s)} what="Step time" onChoose={onChoose} />
        <Worst title="Most silent" rows={mesh.most_silent} of={(rank) => duration(rank.heartbeat_age_s)} what="Last heartbeat" onChoose={onChoose} />
      </div>
    </>
  );
});

const columnsOf = (mesh: Mesh): MeshColumns => mesh.columns as unknown as MeshColumns;

function inWords(mesh: Mesh, show: MeshShow): string {
  const found = counted(columnsOf(mesh), show);
  const parts = WORDS[show].filter(([name]) => (found.get(name) ?? 0) > 0).map(([name, what]) => `${count(found.get(name))} ${what}`);
  const out = mesh.replicas.filter((replica) => !replica.contributing).length;
  return [`${count(mesh.ranks)} ranks in ${count(mesh.replicas.length)} replicas`, out > 0 ? `${count(out)} not contributing` : "", ...parts].filter(Boolean).join("; ");
}

function MeshCanvas({ mesh, show, label, chosen, onChoose }: { mesh: Mesh; show: MeshShow; label: string; chosen: number | null; onChoose: (replica: number) => void }): ReactElement {
  const [box, width] = useWidth();
  const canvas = useRef<HTMLCanvasElement>(null);
  const mark = useRef<HTMLElement>(null);
  const [at, setAt] = useState(-1);
  const dark = useDark();
  const columns = columnsOf(mesh);
  const layout = useMemo(() => meshLayout(columns, Math.max(120, width), ROOM_PX), [columns, width]);
  useEffect(() => {
    if (canvas.current && width > 0) paint(canvas.current, mesh, layout, width, show);
  }, [mesh, layout, width, show, dark]);
  const here = at < columns.rank.length ? at : -1;
  const onKey = (event: KeyboardEvent): void => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : event.key === "ArrowDown" ? nextBlock(columns, here, 1) : event.key === "ArrowUp" ? nextBlock(columns, here, -1) : 0;
    if (event.key === "Enter" && here >= 0) onChoose(columns.replica[here]!);
    else if (step !== 0) setAt(Math.min(columns.rank.length - 1, Math.max(0, here + step)));
    else return;
    event.preventDefault();
    requestAnimationFrame(() => {
      mark.current?.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
  };
  const under = (event: MouseEvent<HTMLCanvasElement>): number => rankAt(layout, event.nativeEvent.offsetX, event.nativeEvent.offsetY);
  const block = layout.blocks.find(({ replica }) => replica === chosen);
  return (
    <>
      <div ref={box} className="bigmap" role="application" tabIndex={0} aria-label={`Ranks of the job: ${label}. Arrow keys choose a rank, Enter opens its replica below.`} onKeyDown={onKey}>
        <canvas ref={canvas} style={{ width: "100%", height: layout.height }} onMouseMove={(event) => setAt(under(event))} onClick={(event) => {
          const hit = under(event);
          if (hit >= 0) onChoose(columns.replica[hit]!);
        }} />
        {block ? <i className="bigmap-mark" style={{ left: block.x, top: block.y, width: block.width + 4, height: block.height + 4 }} /> : null}
        {here >= 0 ? <i ref={mark} className="bigmap-mark" style={{ left: layout.x[here]!, top: layout.y[here]!, width: layout.pitch + 3, height: layout.pitch + 3 }} /> : null}
      </div>
      <p className="bigmap-said" aria-live="polite">{here >= 0 ? <Said columns={columns} at={here} /> : "Point at a square, or walk with the arrow keys, to read which rank it is."}</p>
    </>
  );
}

/** To the same rank of the replica before or behind. */
function nextBlock(columns: MeshColumns, at: number, by: 1 | -1): number {
  if (at < 0) return 1;
  for (let i = at + by; i >= 0 && i < columns.rank.length; i += by) if (columns.rank[i] === columns.rank[at]) return i - at;
  return 0;
}

function paint(canvas: HTMLCanvasElement, mesh: Mesh, layout: MeshLayout, width: number, show: MeshShow): void {
  const columns = columnsOf(mesh);
  const medians = stageMedians(columns);
  const states = new Map(mesh.replicas.map((replica) => [replica.index, replica]));
  const size = Math.max(2, layout.pitch - (layout.pitch > 5 ? 2 : 1));
  const context = drawPixels(canvas, width, layout.height, (fill) => {
    for (const { replica, x, y, width: wide, height } of layout.blocks) {
      const tone = styleOf("replica", states.get(replica)?.state ?? "").tone;
      if (tone !== "ok") fill(x - 2, y, wide + 3, height + 2, `--${tone}-bg`);
    }
    for (let i = 0; i < columns.rank.length; i += 1) {
      const name = classOf(columns, i, show, medians);
      fill(layout.x[i]!, layout.y[i]!, size, size, name.startsWith("heat-") ? `--${name}` : TOKENS[name as keyof typeof TOKENS]);
    }
  });
  for (const { replica, x, y } of layout.blocks) {
    const state = states.get(replica)?.state;
    context?.fillText(state === "active" ? `${replica}` : `${replica} ${words(state ?? "")}`, x, y + 11, Math.max(72, layout.blocks[0]!.width));
  }
}

function Said({ columns, at }: { columns: MeshColumns; at: number }): ReactElement {
  const rank = rankOf(columns, at);
  return (
    <>
      <b>Replica {rank.replica}, rank {rank.rank}</b> <StateBadge kind="rank" state={rank.state} compact /> {rank.place ? `${rank.place}; ` : ""}{rank.phase ? `${words(rank.phase)}, ` : ""}step {count(rank.step)}, step time {duration(rank.stepS)}, heartbeat {rank.heartbeatAgeS === null ? MISSING : `${duration(rank.heartbeatAgeS)} ago`}; {rank.node} gpu {rank.device}
    </>
  );
}

function Legend({ show }: { show: MeshShow }): ReactElement {
  return (
    <div className="map-legend">
      {show === "step time" ? (
        <>
          <span>median of its stage</span>
          <span className="map-scale" aria-hidden>{Array.from({ length: STEPS }, (_, i) => <i key={i} className={`heat-${i}`} />)}</span>
          <span>1.5 times it or more</span>
        </>
      ) : null}
      {WORDS[show].map(([name, what]) => <span key={name} className="legend-mark"><i className="swatch" style={{ background: `var(${TOKENS[name]})` }} /> {what}</span>)}
      <span>A block is a replica, a row a pipeline stage; the ground of a replica that is not active has the colour of its state.</span>
    </div>
  );
}

function Worst({ title, rows, of, what, onChoose }: { title: string; rows: Mesh["slowest"]; of: (rank: Mesh["slowest"][number]) => string; what: string; onChoose: (replica: number) => void }): ReactElement {
  return (
    <section aria-label={title}>
      <h3>{title}</h3>
      {rows.length === 0 ? <p className="muted">Nothing was reported yet.</p> : (
        <Scroll label={title}>
          <table>
            <thead><tr><th>Replica</th><th className="num">Rank</th><th className="num">{what}</th><th>State</th><th>Device</th></tr></thead>
            <tbody>
              {rows.map((rank) => (
                <tr key={rank.global_rank}>
                  <td><button type="button" className="link" onClick={() => onChoose(rank.replica)}>replica {rank.replica}</button></td>
                  <td className="num">{rank.rank}</td>
                  <td className="num">{of(rank)}</td>
                  <td><StateBadge kind="rank" state={rank.state} compact /></td>
                  <td className="nowrap">{rank.node_name} gpu {rank.device_index}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </section>
  );
}

/** One slot's newest incarnation, as of small jobs all are shown. */
function OneReplica({ job, settled, index, onEvict, onLogs, onClose }: Props & { index: number; onClose: () => void }): ReactElement {
  const query = useQuery(queries.replica(job.id, index, settled));
  return (
    <Panel title={`Replica ${index}`} actions={<button type="button" className="button small" onClick={onClose}>Close</button>}>
      <Loaded query={query} skeleton={<Skeleton height={160} />}>
        {(page) => page.items.length === 0 ? <Empty icon="search" title={`There is no replica ${index}`} /> : <ReplicaGrid jobId={job.id} project={job.project} replicas={page.items} asOfSeq={page.as_of_seq} committedStep={job.committed_step} onEvict={onEvict} onLogs={onLogs} />}
      </Loaded>
    </Panel>
  );
}
