/* One decision: why, on what evidence, instead of what, and what came of it. */
import { useQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import { Link, useParams } from "react-router";
import * as queries from "../api/queries";
import type { DecisionDetail } from "../api/types";
import { CommandTimeline } from "../components/CommandTimeline";
import { Consent } from "../components/Consent";
import { Actions, AlternativeTable, Evidence } from "../components/DecisionParts";
import { duration, gpuSeconds, shortId, words } from "../lib/format";
import { paths } from "../lib/paths";
import { documentsText } from "../lib/policy";
import { CopyButton, Figure, Id, Loaded, PageHead, Panel, Skeleton, Time } from "../ui/basics";

export function DecisionPage(): ReactElement {
  const { id = "" } = useParams();
  const query = useQuery(queries.decision(id));
  return (
    <Loaded query={query} head={<><title>{"Decision - Holdfast"}</title><PageHead title={id} /></>} skeleton={<Skeleton height={420} />}>
      {(decision) => <Content decision={decision} />}
    </Loaded>
  );
}

function Content({ decision }: { decision: DecisionDetail }): ReactElement {
  const crumbs = decision.incident_id
    ? [{ to: paths.incidents(), text: "Incidents" }, { to: paths.incident(decision.incident_id), text: "The incident" }]
    : decision.job_id ? [{ to: paths.job(decision.job_id, "decisions"), text: "The job's decisions" }] : [{ to: paths.overview(), text: "Overview" }];
  return (
    <>
      <title>{`${words(decision.choice)} - Holdfast`}</title>
      <PageHead crumbs={crumbs} title={`Decision: ${words(decision.choice)}`} actions={<CopyButton text={() => JSON.stringify(decision, null, 2)} what="decision" label="Copy JSON" />}>
        <p className="why">{decision.sentence}</p>
        <div className="meta">
          <span className="chip">rule <b>{words(decision.rule)}</b></span>
          <span className="chip">reason <b>{words(decision.reason_code)}</b></span>
          <span className="chip">mode <b>{decision.mode}</b></span>
          <span className="chip"><b>{decision.applied ? "carried out" : "recorded only"}</b></span>
          {decision.routine ? <span className="chip">routine</span> : null}
          {decision.job_id ? <span className="chip">job <Link to={paths.job(decision.job_id)}>{shortId(decision.job_id)}</Link></span> : <span className="chip">the fleet</span>}
          <Id id={decision.id} short={shortId(decision.id)} />
        </div>
      </PageHead>
      <Consent decision={decision} />
      <dl className="figures">
        <Figure label="Decided" value={<Time at={decision.at} />} />
        <Figure label="Took" value={duration(decision.decide_s)} />
        <Figure label="Expected cost" value={gpuSeconds(decision.cost_gpu_s)} />
        <Figure label="Epoch" value={decision.epoch_before === decision.epoch_after ? decision.epoch_after : `${decision.epoch_before} to ${decision.epoch_after}`} />
        <Figure label="Policy" value={<code>{decision.policy_version}</code>} note={documentsText(decision.policy_documents) && `documents: ${documentsText(decision.policy_documents)}`} />
      </dl>
      <Panel title="What was weighed" flush><AlternativeTable decision={decision} /></Panel>
      <div className="grid-2">
        <Panel title="Evidence"><Evidence evidence={decision.evidence} /></Panel>
        <Panel title="Actions"><Actions actions={decision.actions} /></Panel>
      </div>
      <Panel title="Commands and their answers"><CommandTimeline commands={decision.commands ?? []} /></Panel>
    </>
  );
}
