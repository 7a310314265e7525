/* Who waits for devices and why, and what the devices are in use for. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import { Link } from "react-router";
import * as queries from "../api/queries";
import type { QueuedJob, WaitingJob } from "../api/types";
import { CapacityFigures, CapacityTable, Ends, ReservedFree, Yields } from "../components/CapacityParts";
import { Pools } from "../components/Engine";
import { JobName } from "../components/JobName";
import { Reservations } from "../components/Reservations";
import { count, gpuSeconds } from "../lib/format";
import { paths } from "../lib/paths";
import { Empty, Loaded, PageHead, Panel, Skeleton, Time } from "../ui/basics";
import { More, shownOf } from "../ui/More";
import { Scroll } from "../ui/Scroll";

export function QueuePage(): ReactElement {
  const capacity = useQuery(queries.capacity());
  return (
    <>
      <title>Queue - Holdfast</title>
      <PageHead title="Queue and capacity" />
      <Loaded query={capacity} skeleton={<Skeleton height={64} />}>{(found) => <CapacityFigures capacity={found} />}</Loaded>
      <Waiting />
      <Pools />
      {capacity.data ? (
        <>
          <Panel title="Devices by type and segment" flush><CapacityTable capacity={capacity.data} /><ReservedFree capacity={capacity.data} /></Panel>
          <Reservations />
          <div className="grid-2">
            <Panel title="Who yields to whom" flush><Yields capacity={capacity.data} /></Panel>
            <Panel title="Expected ends" flush><Ends capacity={capacity.data} /></Panel>
          </div>
        </>
      ) : null}
    </>
  );
}

function Waiting(): ReactElement {
  const query = useInfiniteQuery(queries.waiting());
  const { rows, total } = queries.whole(query.data);
  const shown = query.data ? shownOf(rows.length, total, query.hasNextPage, "job waits", "jobs wait") : "";
  return (
    <Panel title="Waiting jobs" flush actions={<span className="muted" role="status">{rows.length > 0 ? shown : ""}</span>}>
      <Loaded query={query} skeleton={<div className="padded"><Skeleton lines={4} /></div>}>
        {() => rows.length === 0 ? (
          <Empty title="No job waits">Jobs stand here while they wait for devices. <Link to={paths.submit()}>Submit one</Link>.</Empty>
        ) : (
          <>
            <Scroll label="Waiting jobs">
              <table>
                <thead><tr><th className="num">Place</th><th>Job</th><th className="num">Priority</th><th>Waits since</th><th>Needs</th><th>What it waits for</th><th>Expected to start</th></tr></thead>
                <tbody>{rows.map((job) => <Row key={job.job_id} job={job} />)}</tbody>
              </table>
            </Scroll>
            <More query={query} shown={rows.length} total={total} one="job" many="jobs" />
          </>
        )}
      </Loaded>
    </Panel>
  );
}

function Row({ job }: { job: WaitingJob }): ReactElement {
  const yields = new Set(job.preempts.map((each) => each.id));
  const frees = job.makes_room.filter((each) => !yields.has(each.id));
  return (
    <tr>
      <td className="num">{job.place}</td>
      <td>
        <Link className="cell-name" to={paths.job(job.job_id)}>{job.name}</Link>
        <div className="muted">{[job.project, job.owner].filter((each) => each !== "").join(", ")}{job.state === "preempted" ? "; was preempted" : ""}</div>
      </td>
      <td className="num">{job.priority}</td>
      <td><Time at={job.submitted_at} /></td>
      <td className="words">{job.needs}</td>
      <td className="queue-why">
        {withoutPlace(job)}
        {frees.length > 0 ? <div className="muted">Room is expected when these have ended: <Jobs jobs={frees} />.</div> : null}
        {job.preempts.map((each, index) => (
          <div key={`${each.id} ${index}`}><JobName job={each} /> (priority {each.priority}) {each.asked ? "saves and yields to it" : "is asked to yield next"}{each.lost_gpu_s === null ? "" : `, ${gpuSeconds(each.lost_gpu_s)} expected to be lost`}.</div>
        ))}
        {job.preempts.length === 0 && job.no_preemption !== "" ? <div className="muted">It outranks <Jobs jobs={job.outranks} />, of which none yields: {job.no_preemption}.</div> : null}
      </td>
      <td>{job.expected_at ? <Time at={job.expected_at} /> : <span className="missing">not known</span>}</td>
    </tr>
  );
}

/** The place has a column of its own. */
function withoutPlace(job: WaitingJob): string {
  const words = job.sentence.replace(/^Place \d+ of \d+ in the queue: /, "");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

const NAMED = 3;

function Jobs({ jobs }: { jobs: QueuedJob[] }): ReactElement {
  const more = jobs.length - NAMED;
  return (
    <>
      {jobs.slice(0, NAMED).map((job, index) => (
        <span key={`${job.id} ${index}`}>{index > 0 ? ", " : ""}<JobName job={job} />{job.expected_end_at ? <> (<Time at={job.expected_end_at} />)</> : null}</span>
      ))}
      {more > 0 ? ` and ${count(more)} more` : ""}
    </>
  );
}
