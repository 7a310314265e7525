/* The job list (E52): server-side filters in the URL, a thousand rows by drawing only those in
   sight, and an order that does not change under the cursor. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useVirtualizer } from "@tanstack/react-virtual";
import { type ReactElement, useEffect, useMemo, useRef, useState } from "react";
import { Link, useSearchParams } from "react-router";
import * as queries from "../api/queries";
import type { Job } from "../api/types";
import { SilentOf } from "../components/Heard";
import { ettrOf } from "../lib/effective";
import { count, duration, fixed, words } from "../lib/format";
import { heldOrder } from "../lib/order";
import { useSetParam } from "../lib/params";
import { paths } from "../lib/paths";
import { usePatchedList } from "../live/hooks";
import { ActButton, ANYWHERE, useWhyMayNot } from "../ui/ActButton";
import { Bar, Empty, PageHead, Problem, Skeleton } from "../ui/basics";
import { Icon } from "../ui/icons";
import { shownOf } from "../ui/More";
import { SearchBox } from "../ui/SearchBox";
import { STYLES, styleOf, StateBadge } from "../ui/states";

const ROW_PX = 44;

export function JobsPage(): ReactElement {
  const [params, setParams] = useSearchParams();
  const state = params.get("state") ?? "";
  const q = params.get("q") ?? "";
  const project = params.get("project") ?? "";
  const query = useInfiniteQuery(queries.jobs(state, q, project));
  const mine = Object.keys(useQuery(queries.me()).data?.projects ?? {});
  const filtered = state !== "" || q !== "" || project !== "";
  const { rows, total, asOfSeq: asOf } = useMemo(() => queries.whole(query.data), [query.data]);
  const set = useSetParam();
  return (
    <>
      <title>Jobs - Holdfast</title>
      <PageHead title="Jobs" actions={<SubmitLink />} />
      <div className="toolbar">
        <SearchBox value={q} label="Search jobs" placeholder="Name or project" focus={params.get("focus") === "search"} onChange={(value) => set("q", value)} />
        <label className="inline">
          <span className="visually-hidden">State</span>
          <select value={state} onChange={(event) => set("state", event.target.value)}>
            <option value="">Any state</option>
            {Object.keys(STYLES.job).map((name) => <option key={name} value={name}>{words(name)}</option>)}
          </select>
        </label>
        {mine.length > 1 || project ? (
          <label className="inline">
            <span className="visually-hidden">Project</span>
            <select value={project} onChange={(event) => set("project", event.target.value)}>
              <option value="">Any project</option>
              {(mine.includes(project) || project === "" ? mine : [...mine, project]).map((name) => <option key={name} value={name}>{name}</option>)}
            </select>
          </label>
        ) : null}
        <span className="muted" role="status">{query.data ? shownOf(rows.length, total, query.hasNextPage, "job", "jobs") : ""}</span>
      </div>
      {query.error && rows.length === 0 ? <Problem error={query.error} retry={() => void query.refetch()} /> : null}
      {query.isPending ? <Skeleton height={420} /> : null}
      {query.data && rows.length === 0 ? (
        <div className="panel">
          <Empty icon="list" title={filtered ? "No job matches" : "No jobs yet"}>
            {filtered ? <button type="button" className="button" onClick={() => setParams({})}>Clear the filters</button> : <Link to={paths.submit()}>Submit the first one</Link>}
          </Empty>
        </div>
      ) : null}
      {rows.length > 0 ? <JobTable rows={rows} asOf={asOf} more={query.hasNextPage && !query.isFetchingNextPage ? () => void query.fetchNextPage() : null} /> : null}
    </>
  );
}

/** To the page that submits; for who may submit nowhere, a button that says so. */
function SubmitLink(): ReactElement {
  const why = useWhyMayNot("/jobs", ANYWHERE);
  if (why !== "") return <ActButton does="/jobs" project={ANYWHERE} className="primary">Submit a job</ActButton>;
  return <Link to={paths.submit()} className="button primary">Submit a job</Link>;
}

function JobTable({ rows: fresh, asOf, more }: { rows: Job[]; asOf: number; more: (() => void) | null }): ReactElement {
  const scroll = useRef<HTMLDivElement>(null);
  const [hover, setHover] = useState(false);
  const shown = useRef<Job[]>(fresh);
  const held = heldOrder(shown.current, fresh, hover);
  shown.current = held.rows;
  const rows = usePatchedList("job", held.rows, asOf);
  const virtual = useVirtualizer({ count: rows.length, getScrollElement: () => scroll.current, estimateSize: () => ROW_PX, overscan: 12 });
  const items = virtual.getVirtualItems();
  const last = items[items.length - 1]?.index ?? 0;
  useEffect(() => {
    if (more && last >= rows.length - 20) more();
  }, [last, rows.length, more]);
  return (
    <div className="panel joblist" onPointerEnter={() => setHover(true)} onPointerLeave={() => setHover(false)}>
      {held.waiting > 0 ? (
        <button type="button" className="pill" onClick={() => setHover(false)}>{held.waiting} {held.waiting === 1 ? "change" : "changes"} to the list: show</button>
      ) : null}
      <div className="joblist-scroll" ref={scroll} tabIndex={0} role="table" aria-label="Jobs" aria-rowcount={rows.length + 1}>
        <div className="jobrow jobhead" role="row" aria-rowindex={1}>
          {["State", "Job", "Progress", "Step time", "Loss", "ETA", "Replicas", "ETTR", "Restarts", "Checkpoint"].map((name) => <span key={name} role="columnheader">{name}</span>)}
        </div>
        <div role="rowgroup" style={{ height: virtual.getTotalSize(), position: "relative" }}>
          {items.map((item) => (
            <div key={rows[item.index]!.id} className="jobrow" role="row" aria-rowindex={item.index + 2} style={{ position: "absolute", top: 0, insetInline: 0, height: ROW_PX, transform: `translateY(${item.start}px)` }}>
              <JobCells job={rows[item.index]!} />
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}

/** In a dense table a missing value is a dash whose tooltip says "not reported". */
function Cell({ value, className }: { value: string; className?: string }): ReactElement {
  return value === "not reported" ? <span role="cell" className="muted" title="not reported">-</span> : <span role="cell" className={className}>{value}</span>;
}

function Ettr({ job }: { job: Job }): ReactElement {
  const { figure, word, why } = ettrOf(job);
  if (figure === null) return <span role="cell" className="muted" title={why}>{word === "not counted" ? word : "-"}</span>;
  return <span role="cell" title={why}>{figure}{word ? <span className="muted"> {word}</span> : null}</span>;
}

function JobCells({ job }: { job: Job }): ReactElement {
  const short = job.replicas_active < job.replicas_total && (job.state === "running" || job.state === "recovering");
  return (
    <>
      <span role="cell"><StateBadge kind="job" state={job.state} detail={job.state_reason} /></span>
      <span role="cell" className="jobname">
        <Link to={paths.job(job.id)}>{job.name}</Link>
        {job.not_heard.length > 0 ? <SilentOf silent={job.not_heard} /> : <span className="muted">{job.project} / {job.owner}</span>}
        {job.open_incident_id ? <Link to={paths.incident(job.open_incident_id)} className="jobincident" title="Open incident"><Icon name="alert" size={13} title="Open incident" /></Link> : null}
      </span>
      <span role="cell" className="jobprogress">
        <Bar ratio={job.progress} tone={styleOf("job", job.state).tone} label={`Progress of ${job.name}`} />
        <span className="muted">{count(job.committed_step)} / {count(job.total_steps)}</span>
      </span>
      <Cell value={duration(job.step_time_s)} />
      <Cell value={fixed(job.loss, 3)} />
      <Cell value={duration(job.eta_s)} />
      {job.attempt ? <span role="cell" className={short ? "text-warn" : ""}>{job.replicas_active} / {job.replicas_total}</span> : <span role="cell" className="muted" title="none placed yet">-</span>}
      <Ettr job={job} />
      <span role="cell">{job.restarts}</span>
      <Cell value={job.checkpoint_age_s === null ? "-" : `${job.last_checkpoint_step === null ? "none, " : ""}${duration(job.checkpoint_age_s)}`} />
    </>
  );
}
