/* How effective a job is, and how fast beside its own best. */
import type { ReactElement } from "react";
import type { Job } from "../api/types";
import { duration, percent } from "../lib/format";
import { Figure } from "../ui/basics";

/** Below this share of its own best a job is shown as slow. */
const SLOW = 0.8;

/** Neither can be worked out from so few steps; the server knows both or says null. */
const FEW = <span className="missing">too few steps</span>;

export function EffectiveTime({ job }: { job: Job }): ReactElement {
  const slow = job.productivity !== null && job.productivity < SLOW;
  return (
    <>
      <Figure
        label="Effective time (ETTR)"
        value={job.ettr === null ? FEW : percent(job.ettr, 1)}
        note={job.undisturbed_step_s === null ? undefined : `undisturbed step ${duration(job.undisturbed_step_s)}`}
        title="Kept steps x the undisturbed step at full strength / wall time since the first attempt"
      />
      <Figure
        label="Productivity"
        value={job.productivity === null ? FEW : percent(job.productivity, 1)}
        tone={slow ? "warn" : undefined}
        note="speed beside its own best"
        title="The job's own best median of 16 undisturbed steps over the median of its newest 16"
      />
    </>
  );
}
