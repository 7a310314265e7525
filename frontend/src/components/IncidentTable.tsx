/* Incidents as a table; `dense` for panels that share a row. */
import type { ReactElement } from "react";
import { Link } from "react-router";
import type { Incident } from "../api/incidents";
import { duration } from "../lib/format";
import { paths } from "../lib/paths";
import { Time } from "../ui/basics";
import { StateBadge } from "../ui/states";
import { CertificateBadge } from "./Certificate";
import { Scroll } from "../ui/Scroll";

/** Seconds from the fault to the last recorded phase; null before any. */
export function recoveryOf(incident: Incident): number | null {
  return incident.phases[incident.phases.length - 1]?.since_fault_s ?? null;
}

export function IncidentTable({ incidents, dense }: { incidents: Incident[]; dense?: boolean }): ReactElement {
  return (
    <Scroll label="Incidents">
      <table>
        <thead>
          <tr>
            <th>State</th>
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
              <td><StateBadge kind="incident" state={incident.state} /></td>
              <td>
                <Link to={paths.incident(incident.id)}>{incident.title}</Link>
                {incident.outcome && !dense ? <div className="muted">{incident.outcome}</div> : null}
                {dense && incident.job_name ? <div className="muted">{incident.job_name}</div> : null}
              </td>
              {dense ? null : <td>{incident.job_id ? <Link to={paths.job(incident.job_id)}>{incident.job_name ?? incident.job_id}</Link> : <span className="muted">no job</span>}</td>}
              <td className="num">{recoveryOf(incident) === null ? <span className="muted">-</span> : duration(recoveryOf(incident))}</td>
              <td><CertificateBadge certificate={incident.certificate} /></td>
              <td><Time at={incident.opened_at} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
