/* One incident (E54): what happened, on what evidence, what was decided instead of what, who
   was told, how long each phase took, and whether the recovery was exact. */
import { useQuery } from "@tanstack/react-query";
import type { ReactElement, ReactNode } from "react";
import { Link, useParams } from "react-router";
import * as queries from "../api/queries";
import type { Decision, IncidentDetail } from "../api/incidents";
import type { Signal } from "../api/types";
import { CertificateBadge, CertificateView } from "../components/Certificate";
import { CommandTimeline } from "../components/CommandTimeline";
import { AlternativeTable, Evidence } from "../components/DecisionParts";
import { EventTable } from "../components/EventTable";
import { recoveryOf } from "../components/IncidentTable";
import { PhaseChart } from "../components/PhaseChart";
import { DecisionList } from "../components/JobTabs";
import { duration, gpuSeconds, scalar, shortId, words } from "../lib/format";
import { paths } from "../lib/paths";
import { incidentText } from "../lib/phases";
import { usePatched, useTopic } from "../live/hooks";
import { CopyButton, Empty, Figure, Id, Loaded, PageHead, Panel, Skeleton, Time } from "../ui/basics";
import { StateBadge } from "../ui/states";
import { Scroll } from "../ui/Scroll";

export function IncidentPage(): ReactElement {
  const { id = "" } = useParams();
  const query = useQuery(queries.incident(id));
  const incident = usePatched("incident", query.data, query.data?.as_of_seq ?? 0);
  useTopic(query.data?.job_id ? `job:${query.data.job_id}` : null);
  return (
    <Loaded query={{ ...query, data: incident }} skeleton={<><PageHead crumbs={[{ to: paths.incidents(), text: "Incidents" }]} title={id} /><Skeleton height={480} /></>}>
      {(data) => <Content incident={data} />}
    </Loaded>
  );
}

function Content({ incident }: { incident: IncidentDetail }): ReactElement {
  const lead = incident.decisions.find((decision) => !decision.routine) ?? null;
  const commands = incident.decisions.flatMap((decision) => decision.commands ?? []);
  return (
    <>
      <title>{`${incident.title} - Holdfast`}</title>
      <PageHead
        crumbs={[{ to: paths.incidents(), text: "Incidents" }]} title={incident.title} badge={<StateBadge kind="incident" state={incident.state} />}
        actions={<CopyButton text={() => incidentText(incident)} what="incident" label="Copy as text" />}
      >
        <p className="why">{lead?.sentence || incident.outcome || "The finding is being looked at; nothing has been decided yet."}</p>
        {incident.outcome && lead ? <p className="muted">{incident.outcome}</p> : null}
        <div className="meta">
          {incident.job_id ? <span className="chip">job <Link to={paths.job(incident.job_id)}>{incident.job_name ?? shortId(incident.job_id)}</Link></span> : null}
          {incident.node_id ? <span className="chip">node <Link to={paths.node(incident.node_id)}>{incident.signals.find((signal) => signal.node_id === incident.node_id)?.node_name ?? shortId(incident.node_id)}</Link></span> : null}
          <Id id={incident.id} short={shortId(incident.id)} />
        </div>
      </PageHead>
      <Figures incident={incident} lead={lead} commands={commands.length} />
      <Panel title="Where the time went (since the fault)"><PhaseChart phases={incident.phases} /></Panel>
      <div className="grid-2">
        <Panel title="Evidence" flush><Signals signals={incident.signals} lead={lead} /></Panel>
        <Panel title="Certificate"><CertificateView certificate={incident.certificate} /></Panel>
      </div>
      {lead ? (
        <Panel title="What was weighed" flush actions={<span className="chip">rule <b>{words(lead.rule)}</b></span>}>
          <AlternativeTable decision={lead} />
        </Panel>
      ) : null}
      <Panel title="Decisions, in order" flush>
        {incident.decisions.length === 0 ? <Empty icon="hourglass" title="Nothing has been decided yet" /> : <DecisionList decisions={incident.decisions} />}
      </Panel>
      <Panel title="Commands and their answers"><CommandTimeline commands={commands} /></Panel>
      {incident.stacks.length > 0 ? <Panel title="Stacks, taken before anything was stopped"><Stacks stacks={incident.stacks} /></Panel> : null}
      <Panel title="Events" flush><EventTable events={incident.events} /></Panel>
    </>
  );
}

function Figures({ incident, lead, commands }: { incident: IncidentDetail; lead: Decision | null; commands: number }): ReactElement {
  const moment = (name: string): ReactNode => {
    const phase = incident.phases.find((item) => item.name.startsWith(name));
    return phase ? duration(phase.since_fault_s) : <span className="missing">not yet</span>;
  };
  return (
    <dl className="figures">
      <Figure label="Detected after" value={moment("detect")} />
      <Figure label="Training resumed after" value={moment("first_commit")} tone={incident.phases.some((phase) => phase.name === "first_commit") ? "ok" : undefined} />
      <Figure label="Whole recovery" value={incident.state === "resolved" ? duration(recoveryOf(incident)) : <span className="missing">under way</span>} />
      <Figure label="Expected cost of the choice" value={lead ? gpuSeconds(lead.cost_gpu_s) : <span className="missing">undecided</span>} />
      <Figure label="Commands" value={commands} />
      <Figure label="Certificate" value={<CertificateBadge certificate={incident.certificate} />} />
      <Figure label="Opened" value={<Time at={incident.opened_at} />} />
      <Figure label="Resolved" value={incident.resolved_at ? <Time at={incident.resolved_at} /> : <span className="missing">not yet</span>} />
    </dl>
  );
}

function where(signal: Signal): string {
  const parts = [
    signal.node_name,
    signal.device_index === null ? null : `device ${signal.device_index}`,
    signal.replica === null ? null : `replica ${signal.replica}${signal.incarnation === null ? "" : ` #${signal.incarnation}`}`,
    signal.rank === null ? null : `rank ${signal.rank}`,
  ];
  return parts.filter(Boolean).join(", ") || "the job";
}

function Signals({ signals, lead }: { signals: Signal[]; lead: Decision | null }): ReactElement {
  return (
    <>
      {signals.length === 0 ? <Empty icon="eye" title="No signal is attached" /> : (
        <Scroll label="Signals">
          <table>
            <thead><tr><th>Signal</th><th>Where</th><th className="num">Value</th><th className="num">Threshold</th><th>Seen</th><th>Settled</th></tr></thead>
            <tbody>
              {signals.map((signal) => (
                <tr key={signal.id}>
                  <td><b>{words(signal.kind)}</b></td>
                  <td>{where(signal)}</td>
                  <td className="num">{scalar(signal.value)}</td>
                  <td className="num">{signal.threshold === null ? "-" : scalar(signal.threshold)}</td>
                  <td><Time at={signal.seen_at} /></td>
                  <td>{signal.settled_at ? <Time at={signal.settled_at} /> : <span className="muted">open</span>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
      {lead ? <div className="padded"><h3>As the decision saw it</h3><Evidence evidence={lead.evidence} /></div> : null}
    </>
  );
}

function Stacks({ stacks }: { stacks: IncidentDetail["stacks"] }): ReactElement {
  return (
    <>
      {stacks.map((stack, i) => (
        <details key={i} className="fold" open={i === 0}>
          <summary>rank {stack.rank} <span className="muted">({words(stack.method)})</span></summary>
          <pre className="code" tabIndex={0}>{stack.text}</pre>
        </details>
      ))}
    </>
  );
}
