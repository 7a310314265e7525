/* One incident (E54): what happened, on what evidence, what was decided instead of what, who
   was told, how long each phase took, and whether the recovery was exact. */
import { useQuery } from "@tanstack/react-query";
import { useState, type ReactElement, type ReactNode } from "react";
import { Link, useParams } from "react-router";
import * as queries from "../api/queries";
import { useProjectOf } from "../api/project";
import type { Decision, IncidentDetail, Signal } from "../api/types";
import { AcknowledgeDialog } from "../components/AcknowledgeDialog";
import { CertificateBadge, CertificateView } from "../components/Certificate";
import { CommandTimeline } from "../components/CommandTimeline";
import { AlternativeTable, Evidence } from "../components/DecisionParts";
import { EventTable } from "../components/EventTable";
import { FirstFailureLog } from "../components/FirstFailureLog";
import { EndingBadge, IncidentTable } from "../components/IncidentTable";
import { PhaseChart } from "../components/PhaseChart";
import { hasDevices, ReadingsPanel } from "../components/ReadingsPanel";
import { StacksPanel } from "../components/StacksPanel";
import { DecisionList } from "../components/JobTabs";
import { duration, gpuSeconds, scalar, shortId, words } from "../lib/format";
import { paths } from "../lib/paths";
import { incidentText, notDetected } from "../lib/phases";
import { signalText, valueText } from "../lib/readings";
import { useOpened } from "../lib/recent";
import { usePatched, useTopic } from "../live/hooks";
import { CopyButton, Empty, Figure, Id, Loaded, PageHead, Panel, Skeleton, Time } from "../ui/basics";
import { ActButton } from "../ui/ActButton";
import { Icon } from "../ui/icons";
import { Scroll } from "../ui/Scroll";

export function IncidentPage(): ReactElement {
  const { id = "" } = useParams();
  const query = useQuery(queries.incident(id));
  const incident = usePatched("incident", query.data, query.data?.as_of_seq ?? 0);
  useTopic(query.data?.job_id ? `job:${query.data.job_id}` : null);
  return (
    <Loaded query={{ ...query, data: incident }} head={<><title>{`Incident - Holdfast`}</title><PageHead crumbs={[{ to: paths.incidents(), text: "Incidents" }]} title={id} /></>} skeleton={<Skeleton height={480} />}>
      {(data) => <Content incident={data} />}
    </Loaded>
  );
}

function Content({ incident }: { incident: IncidentDetail }): ReactElement {
  useOpened("incident", incident.id, incident.title);
  const lead = incident.decisions.find((decision) => !decision.routine) ?? null;
  const commands = incident.decisions.flatMap((decision) => decision.commands ?? []);
  return (
    <>
      <title>{`${incident.title} - Holdfast`}</title>
      <PageHead
        crumbs={[{ to: paths.incidents(), text: "Incidents" }]} title={incident.title} badge={<EndingBadge incident={incident} />}
        actions={<><Acknowledge incident={incident} /><CopyButton text={() => incidentText(incident)} what="incident" label="Copy as text" /></>}
      >
        <p className="why">{lead?.sentence || incident.resolution || "Under investigation; nothing has been decided yet."}</p>
        {incident.resolution && lead && incident.resolution !== lead.sentence ? <p className="muted">{incident.resolution}</p> : null}
        {incident.acknowledged_by ? <p className="muted">Acknowledged by {incident.acknowledged_by} <Time at={incident.acknowledged_at} />: {incident.acknowledgement}</p> : null}
        {incident.part_of ? <p>Part of <Link to={paths.incident(incident.part_of)}>one cause with incidents of other jobs</Link>.</p> : null}
        <div className="meta">
          {incident.job_id ? <span className="chip">job <Link to={paths.job(incident.job_id)}>{incident.job_name ?? shortId(incident.job_id)}</Link></span> : null}
          {incident.node_id ? <span className="chip">node <Link to={paths.node(incident.node_id)}>{incident.node_name ?? shortId(incident.node_id)}</Link></span> : null}
          <Id id={incident.id} short={shortId(incident.id)} />
        </div>
      </PageHead>
      {incident.parts.length > 0 ? <Panel title="Incidents of this cause, by job" flush><IncidentTable incidents={incident.parts} /></Panel> : null}
      <Figures incident={incident} lead={lead} commands={commands.length} />
      <Panel title={`Where the time went (since the ${incident.phases[0]?.name === "ordered" ? "request" : incident.job_id === null ? "fault" : "last progress"})`}><PhaseChart phases={incident.phases} /></Panel>
      <div className="grid-2">
        <Panel title="Evidence" flush><Signals signals={incident.signals} lead={lead} /></Panel>
        <Panel title="Certificate"><CertificateView certificate={incident.certificate} hit={incident.job_id !== null} lost={incident.outcome === "lost"} /></Panel>
      </div>
      {hasDevices(incident) ? <ReadingsPanel incident={incident} /> : null}
      {lead ? (
        <Panel title="What was weighed" flush actions={<span className="chip">rule <b>{words(lead.rule)}</b></span>}>
          <AlternativeTable decision={lead} />
        </Panel>
      ) : null}
      <Panel title="Decisions, in order" flush>
        {incident.decisions.length === 0 ? <Empty icon="hourglass" title="Nothing has been decided yet" /> : <DecisionList decisions={incident.decisions} />}
      </Panel>
      <Panel title="Commands and their answers"><CommandTimeline commands={commands} /></Panel>
      <FirstFailureLog failure={incident.first_failure} />
      <StacksPanel incident={incident} />
      <Panel title="Events" flush><EventTable events={incident.events} /></Panel>
    </>
  );
}

/** Nobody may overlook a lost job or a dead GPU: one act says who takes it on. */
function Acknowledge({ incident }: { incident: IncidentDetail }): ReactElement {
  const [asked, setAsked] = useState(false);
  const project = useProjectOf(incident.job_id);
  return (
    <>
      <ActButton does="/incidents/{incident_id}:acknowledge" of={incident} project={project} onPress={() => setAsked(true)}><Icon name="eye" size={14} /> Acknowledge</ActButton>
      {asked ? <AcknowledgeDialog incident={incident} onClose={() => setAsked(false)} /> : null}
    </>
  );
}

/** Why a figure of the job's training is not there: `open` while it can still come, `over` when it cannot. */
function without(incident: IncidentDetail, open: string, over = "none"): ReactNode {
  if (incident.outcome === "lost") return <span className="missing">the job failed</span>;
  if (incident.job_id === null) return <span className="missing">no job was hit</span>;
  return <span className="missing">{incident.state === "resolved" ? over : open}</span>;
}

function Figures({ incident, lead, commands }: { incident: IncidentDetail; lead: Decision | null; commands: number }): ReactElement {
  const phase = (name: string): IncidentDetail["phases"][number] | undefined => incident.phases.find((item) => item.name.startsWith(name));
  const [detected, resumed] = [phase("detect"), phase("first_commit")];
  return (
    <dl className="figures">
      <Figure label="Detected after" value={detected ? duration(detected.since_fault_s) : <span className="missing">{notDetected(incident)}</span>} />
      <Figure label="Training resumed after" value={resumed ? duration(resumed.since_fault_s) : without(incident, "not yet")} tone={resumed ? "ok" : undefined} />
      <Figure label="Training stood still" value={incident.stall_s === null ? without(incident, "no step yet", "not measured") : duration(incident.stall_s)} title="Because of this incident: time in failed exchanges and view changes, as the survivors measured it; where nobody survived, from the last step to the first of the next attempt. Each second is counted in one incident: in the one that first changed who trains in that step" note={incident.stall_others_s ? `and ${duration(incident.stall_others_s)} because of others` : undefined} />
      <Figure label="Whole recovery" value={incident.recovery_s === null ? without(incident, "under way") : duration(incident.recovery_s)} />
      <Figure label="Expected cost of the choice" value={lead ? (lead.cost_gpu_s === null ? <span className="missing">not estimated</span> : gpuSeconds(lead.cost_gpu_s)) : <span className="missing">undecided</span>} />
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
                  <td><b>{signalText(signal)}</b></td>
                  <td>{where(signal)}</td>
                  <td className="num">{valueText(signal)}</td>
                  <td className="num">{signal.threshold !== null ? scalar(signal.threshold) : <span className="muted" title="it needs none">-</span>}</td>
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
