/* Phases of a recovery on one time line from the fault, with the same numbers as a table. */
import type { ReactElement } from "react";
import type { IncidentPhase } from "../api/types";
import { duration, words } from "../lib/format";
import { phaseBars } from "../lib/phases";
import { Empty, Time } from "../ui/basics";

const TONES = ["bad", "warn", "special", "ok", "info", "idle"];

export function PhaseChart({ phases }: { phases: IncidentPhase[] }): ReactElement {
  const bars = phaseBars(phases);
  if (bars.length === 0) return <Empty icon="hourglass" title="No phase is measured yet">Times appear here as the recovery proceeds.</Empty>;
  const total = Math.max(bars[bars.length - 1]!.endS, 0.001);
  const at = new Map(phases.map((phase) => [phase.name, phase.at]));
  return (
    <div className="phases">
      {bars.map((bar, i) => (
        <div key={bar.name} className="phase">
          <span className="phase-name">{words(bar.name)}</span>
          <span className="phase-track" aria-hidden>
            <span className={`phase-fill tone-${TONES[i % TONES.length]}`} style={{ left: `${(bar.startS / total) * 100}%`, width: `max(3px, ${((bar.endS - bar.startS) / total) * 100}%)` }} />
          </span>
          <span className="phase-num"><b>+{duration(bar.durationS)}</b></span>
          <span className="phase-num muted">at {duration(bar.endS)}</span>
          <span className="phase-at muted"><Time at={at.get(bar.name)} /></span>
        </div>
      ))}
    </div>
  );
}
