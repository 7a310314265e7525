/* How effective a job is, and how fast beside its own best. */
import type { ReactElement } from "react";
import type { Job } from "../api/types";
import { ettrOf, wallParts } from "../lib/effective";
import { duration, percent } from "../lib/format";
import { ENDED_STATES } from "../lib/jobnow";
import { Figure } from "../ui/basics";

/** Below this share of its own best a job is shown as slow. */
const SLOW = 0.8;

const missing = (why: string): ReactElement => <span className="missing">{why}</span>;

export function EffectiveTime({ job }: { job: Job }): ReactElement {
  const slow = job.productivity !== null && job.productivity < SLOW;
  const ettr = ettrOf(job);
  const parts = wallParts(job);
  const step = job.undisturbed_step_s === null ? undefined : `undisturbed step ${duration(job.undisturbed_step_s)}`;
  return (
    <>
      <Figure
        label="Effective time (ETTR)"
        value={ettr.figure ?? missing(ettr.word)}
        note={ettr.figure !== null && ettr.word ? `${ettr.word}, ${step}` : step}
        title={`Kept steps x the undisturbed step at full strength / wall time since the first attempt. ${ettr.why}`}
      />
      {parts.length > 0 ? (
        <Figure
          label="Wall time"
          value={parts.slice(0, 1).map(({ what, share }) => `${share} ${what}`).join("")}
          note={parts.slice(1).map(({ what, share }) => `${share} ${what}`).join(", ") || undefined}
          title="All wall time since the first attempt, each second once. Degraded: slower steps than undisturbed ones at full strength. Lost work: steps trained again."
        />
      ) : null}
      <Figure
        label="Productivity"
        value={job.productivity === null ? missing(ENDED_STATES.has(job.state) ? "the job has ended" : "too few steps") : percent(job.productivity, 1)}
        tone={slow ? "warn" : undefined}
        note="speed beside its own best"
        title="The job's own best median of 16 undisturbed steps over the median of its newest 16, or over the time since the newest where that is longer"
      />
    </>
  );
}
