/* Where a job that waits stands in the queue: what it needs, who is ahead, what would make room, and when. */
import { useQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import * as queries from "../api/queries";
import type { QueuedJob } from "../api/types";
import { count } from "../lib/format";
import { Figure, Panel, Time } from "../ui/basics";
import { JobName } from "./JobName";

export function QueuePlace({ jobId }: { jobId: string }): ReactElement | null {
  const queue = useQuery(queries.queue(jobId)).data;
  if (!queue || queue.place === null) return null;
  const more = queue.ahead_count - queue.ahead.length;
  return (
    <Panel title="In the queue">
      <p>{queue.sentence}</p>
      <dl className="figures">
        <Figure label="Place" value={`${queue.place} of ${queue.waiting}`} note={`priority ${queue.priority}`} />
        <Figure label="Free devices" value={count(queue.devices_free)} note={queue.nodes_free === null ? undefined : `nodes with as many as it needs of each: ${count(queue.nodes_free)}`} />
        <Figure label="Expected to start" value={queue.expected_at ? <Time at={queue.expected_at} /> : <span className="missing">not known</span>} />
      </dl>
      <p className="muted">Needs {queue.needs}.</p>
      {queue.ahead.length > 0 ? <p className="muted">Ahead of it: <Jobs jobs={queue.ahead} />{more > 0 ? ` and ${more} more` : ""}.</p> : null}
      {queue.makes_room.length > 0 ? <p className="muted">Room is expected when these have ended: <Jobs jobs={queue.makes_room} />.</p> : null}
      {queue.preempts.length > 0
        ? <p className="muted">Yielding their devices to it: {queue.preempts.map((job, index) => (
          <span key={`${job.id} ${index}`}>
            {index > 0 ? ", " : ""}<JobName job={job} /> (priority {job.priority}; {job.asked ? "saves now" : "asked next"}{job.lost_gpu_s === null ? "" : `, ${count(Math.round(job.lost_gpu_s))} GPU-seconds expected to be lost`})
          </span>
        ))}.</p>
        : queue.outranks.length > 0 ? <p className="muted">It has a higher priority than: <Jobs jobs={queue.outranks} />. No preemption is planned now: {queue.no_preemption}.</p> : null}
      {queue.spared.length > 0
        ? <ul className="muted">{queue.spared.map((job, index) => (
          <li key={`${job.id} ${index}`}><JobName job={job} /> (priority {job.priority}) {job.why}{job.until_at ? <>, until <Time at={job.until_at} /></> : null}</li>
        ))}</ul>
        : null}
    </Panel>
  );
}

function Jobs({ jobs }: { jobs: QueuedJob[] }): ReactElement {
  return (
    <>
      {jobs.map((job, index) => (
        <span key={`${job.id} ${index}`}>
          {index > 0 ? ", " : ""}<JobName job={job} /> (priority {job.priority}{job.expected_end_at ? <>, expected to end <Time at={job.expected_end_at} /></> : null})
        </span>
      ))}
    </>
  );
}
