/* One decision on one line: what, why, how much, and whether it was carried out. */
import type { ReactElement } from "react";
import { Link } from "react-router";
import type { Decision } from "../api/types";
import { gpuSeconds, words } from "../lib/format";
import { paths } from "../lib/paths";
import { Time } from "../ui/basics";

/** `ofJob`: among decisions of many jobs each says whose it is. */
export function DecisionRow({ decision, ofJob = false }: { decision: Decision; ofJob?: boolean }): ReactElement {
  return (
    <div className="row-item">
      <div className="row-main">
        <Link to={paths.decision(decision.id)} className="row-title">{words(decision.choice)}</Link>
        <span className="chip">{words(decision.rule)}</span>
        {ofJob ? decision.job_id ? <Link to={paths.job(decision.job_id)}>{decision.job_name ?? decision.job_id}</Link> : <span className="muted">the fleet</span> : null}
        {decision.applied ? null : <span className="chip">{decision.mode}: {decision.mode === "recommend" ? decision.verdict || "nobody has said anything" : "not carried out"}</span>}
        {decision.epoch_after > decision.epoch_before ? <span className="chip">epoch {decision.epoch_before} to {decision.epoch_after}</span> : null}
        {decision.cost_gpu_s === null ? null : <span className="chip" title="expected cost">{gpuSeconds(decision.cost_gpu_s)}</span>}
        <span className="row-time"><Time at={decision.at} /></span>
      </div>
      <p className="row-text">{decision.sentence}</p>
    </div>
  );
}
