/* Incidents as a table; `dense` for panels that share a row. */
import type { ReactElement } from "react";
import { Link } from "react-router";
import type { Incident } from "../api/types";
import { duration } from "../lib/format";
import { paths } from "../lib/paths";
import { Time } from "../ui/basics";
import { Icon } from "../ui/icons";
import { styleOf, StateBadge, type StateStyle } from "../ui/states";
import { CertificateBadge } from "./Certificate";
import { Scroll } from "../ui/Scroll";

/** How it ended, or where it stands: a lost job is never green, and a dead GPU never over. */
export function EndingBadge({ incident }: { incident: Incident }): ReactElement {
  const waits = incident.needs_hardware && incident.state !== "resolved";
  if (incident.outcome === "lost") return <Badge style={styleOf("outcome", "lost")} text={waits ? "lost, needs hardware" : "lost"} />;
  if (incident.state === "mitigated") return <Badge style={styleOf("incident", "mitigated")} text={incident.needs_hardware ? "needs hardware" : "mitigated"} />;
  if (incident.state !== "resolved") return <StateBadge kind="incident" state={incident.state} />;
  if (incident.outcome === "") return <StateBadge kind="incident" state="resolved" />;
  const timed = incident.outcome === "recovered" && incident.recovery_s !== null;
  return <Badge style={styleOf("outcome", incident.outcome)} text={timed ? `recovered in ${duration(incident.recovery_s)}` : incident.outcome} />;
}

function Badge({ style, text }: { style: StateStyle; text: string }): ReactElement {
  return <span className={`badge tone-${style.tone}`} title={style.meaning}><Icon name={style.icon} size={13} /> <span>{text}</span></span>;
}

export function IncidentTable({ incidents, dense }: { incidents: Incident[]; dense?: boolean }): ReactElement {
  return (
    <Scroll label="Incidents">
      <table>
        <thead>
          <tr>
            <th>Ending</th>
            <th>Incident</th>
            {dense ? null : <th>Job</th>}
            <th className="num">Recovery</th>
            <th>Certificate</th>
            <th>Opened</th>
          </tr>
        </thead>
        <tbody>
          {incidents.map((incident) => (
            <tr key={incident.id}>
              <td><EndingBadge incident={incident} /></td>
              <td className="words">
                <Link to={paths.incident(incident.id)}>{incident.title}</Link>
                {incident.resolution && !dense ? <div className="muted">{incident.resolution}</div> : null}
                {dense ? <div className="muted">{incident.job_name ?? incident.node_name}</div> : null}
                {incident.part_of ? <div className="muted">part of <Link to={paths.incident(incident.part_of)}>one cause of several jobs</Link></div> : null}
                {incident.acknowledged_by ? <div className="muted">acknowledged by {incident.acknowledged_by}</div> : null}
              </td>
              {dense ? null : <td>{incident.job_id ? <Link to={paths.job(incident.job_id)}>{incident.job_name ?? incident.job_id}</Link> : <span className="muted">{incident.shared ? "several jobs" : "no job"}{incident.node_name ? `, ${incident.node_name}` : ""}</span>}</td>}
              <td className="num">{incident.recovery_s === null ? <span className="muted">-</span> : duration(incident.recovery_s)}</td>
              <td><CertificateBadge certificate={incident.certificate} /></td>
              <td><Time at={incident.opened_at} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
