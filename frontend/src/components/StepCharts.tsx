/* Loss and step time by step, with what happened drawn across both. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { type ReactElement, useMemo } from "react";
import * as queries from "../api/queries";
import type { Checkpoint, Incident } from "../api/types";
import type { JobSteps } from "../live/steps";
import { duration } from "../lib/format";
import { doneWith } from "../lib/jobnow";
import { keptSteps, markersOf } from "../lib/series";
import { Empty, Panel, Problem, Skeleton } from "../ui/basics";
import { Chart, type Line } from "../ui/Chart";

const LOSS: Line[] = [{ label: "loss", token: "--info-solid", format: (v) => v.toFixed(3) }];
const TIMES: Line[] = [
  { label: "step", token: "--info-solid", format: duration },
  { label: "exchange", token: "--special-solid", format: duration, dash: [4, 3] },
  { label: "stall", token: "--warn-solid", format: duration, points: true },
];

export function StepCharts({ jobId, settled, source }: { jobId: string; settled: boolean; source: JobSteps }): ReactElement {
  const incidents = useInfiniteQuery(queries.jobIncidents(jobId, settled)).data;
  const checkpoints = useInfiniteQuery(queries.checkpoints(jobId, settled)).data;
  const [known, saved] = useMemo(() => [queries.whole(incidents).rows, queries.whole(checkpoints).rows], [incidents, checkpoints]);
  return <Drawn source={source} incidents={known} checkpoints={saved} />;
}

interface DrawnProps {
  source: JobSteps;
  incidents: readonly Incident[];
  checkpoints: readonly Checkpoint[];
}

/** Of steps, incidents and checkpoints that were read elsewhere. */
export function Drawn({ source, incidents, checkpoints }: DrawnProps): ReactElement {
  const steps = useMemo(() => keptSteps(source.steps), [source.steps]);
  const markers = useMemo(() => markersOf(steps, incidents, checkpoints), [steps, incidents, checkpoints]);
  const x = useMemo(() => steps.map(doneWith), [steps]);
  const loss = useMemo(() => [steps.map((step) => step.loss)], [steps]);
  const times = useMemo(
    () => [steps.map((step) => step.step_time_s), steps.map((step) => step.exchange_s), steps.map((step) => (step.stall_s ? step.stall_s / step.steps : null))],
    [steps],
  );
  if (source.error && steps.length === 0) return <Panel title="Loss and step time"><Problem error={source.error} retry={() => void source.refetch()} /></Panel>;
  if (source.pending && steps.length === 0) return <Panel title="Loss and step time"><Skeleton height={190} /></Panel>;
  if (steps.length === 0) return <Panel title="Loss and step time"><Empty icon="hourglass" title="No step is committed yet">The first point appears with the first committed step.</Empty></Panel>;
  return (
    <div className="grid-2">
      <Panel title="Loss (mean a token, global batch)" actions={<MarkerLegend />}>
        <Chart label="Loss by step" x={x} ys={loss} lines={LOSS} xKind="step" markers={markers} />
      </Panel>
      <Panel title="Step time" actions={<MarkerLegend />}>
        <Chart label="Step time by step" x={x} ys={times} lines={TIMES} xKind="step" markers={markers} yRange={[0, null]} />
      </Panel>
    </div>
  );
}

function MarkerLegend(): ReactElement {
  return (
    <span className="marker-legend" aria-hidden>
      <i className="mk mk-incident" /> incident <i className="mk mk-epoch" /> new epoch <i className="mk mk-checkpoint" /> checkpoint
    </span>
  );
}
