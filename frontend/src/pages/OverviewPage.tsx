/* The fleet at a glance (E50): what runs, what is wrong, what was decided, and is the control plane itself well. */
import { useQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import { Link } from "react-router";
import * as queries from "../api/queries";
import type { Decision, Incident } from "../api/incidents";
import type { Overview } from "../api/overview";
import type { JobState } from "../api/types";
import { DecisionRow } from "../components/DecisionRow";
import { HealthStrip } from "../components/HealthStrip";
import { IncidentTable } from "../components/IncidentTable";
import { FleetMap } from "../components/FleetMap";
import { count, percent, words } from "../lib/format";
import { paths } from "../lib/paths";
import { usePatchedList } from "../live/hooks";
import { Empty, Figure, Loaded, PageHead, Panel, Skeleton } from "../ui/basics";
import { Icon } from "../ui/icons";
import { lookOf } from "../ui/states";

const JOB_ORDER: JobState[] = ["running", "recovering", "starting", "pending", "preempted", "succeeded", "failed", "cancelled"];

export function OverviewPage(): ReactElement {
  const overview = useQuery(queries.overview());
  return (
    <>
      <title>Overview - Holdfast</title>
      <PageHead title="Fleet overview" />
      <Loaded query={overview} skeleton={<Skeleton height={360} />}>
        {(data) => <Content data={data} />}
      </Loaded>
    </>
  );
}

function Content({ data }: { data: Overview }): ReactElement {
  const empty = data.devices.total === 0 && Object.values(data.nodes).every((n) => !n);
  return (
    <>
      <HealthStrip health={data.health} />
      <Figures data={data} />
      <JobsByState jobs={data.jobs} />
      {empty ? <FirstRun /> : <FleetMap />}
      <div className="grid-2">
        <RecentIncidents incidents={data.recent_incidents} asOfSeq={data.as_of_seq} />
        <RecentDecisions decisions={data.recent_decisions} />
      </div>
    </>
  );
}

function Figures({ data }: { data: Overview }): ReactElement {
  const { devices } = data;
  const nodes = Object.values(data.nodes).reduce((sum, n) => sum + (n ?? 0), 0);
  return (
    <dl className="figures">
      <Figure label="Goodput, 24 h" value={percent(data.goodput_24h, 1)} note="time spent on kept steps" title="Share of device time that went into steps that were kept" />
      <Figure label="Open incidents" value={count(data.open_incidents)} tone={data.open_incidents > 0 ? "bad" : "ok"} note={data.open_incidents > 0 ? "being handled" : "nothing to handle"} />
      <Figure label="Decisions, last hour" value={count(data.decisions_last_hour)} note={`mode: ${data.health.mode}`} />
      <Figure label="Devices" value={count(devices.total)} note={`${count(devices.busy)} busy, ${count(devices.spare)} spare`} />
      <Figure label="Healthy" value={count(devices.healthy)} tone="ok" />
      <Figure label="At risk" value={count(devices.at_risk)} tone={devices.at_risk > 0 ? "warn" : undefined} />
      <Figure label="Lost" value={count(devices.lost)} tone={devices.lost > 0 ? "bad" : undefined} />
      <Figure label="Nodes" value={count(nodes)} note={Object.entries(data.nodes).filter(([, n]) => n).map(([state, n]) => `${n} ${words(state)}`).join(", ")} />
    </dl>
  );
}

function JobsByState({ jobs }: { jobs: Overview["jobs"] }): ReactElement {
  const total = Object.values(jobs).reduce((sum, n) => sum + (n ?? 0), 0);
  const shown = JOB_ORDER.filter((state) => (jobs[state] ?? 0) > 0);
  return (
    <Panel title="Jobs by state" actions={<Link to={paths.jobs()}>All jobs</Link>}>
      {total === 0 ? (
        <Empty icon="list" title="No jobs yet"><Link to={paths.submit()}>Submit the first one</Link></Empty>
      ) : (
        <>
          <div className="stacked" aria-hidden>
            {shown.map((state) => (
              <span key={state} className={`tone-${lookOf("job", state).tone}`} style={{ flexGrow: jobs[state] }} title={`${jobs[state]} ${words(state)}`} />
            ))}
          </div>
          <ul className="legend">
            {shown.map((state) => {
              const { icon, tone, meaning } = lookOf("job", state);
              return (
                <li key={state}>
                  <Link to={`${paths.jobs()}?state=${state}`} className={`legend-item tone-${tone}`} title={meaning}>
                    <Icon name={icon} size={13} /> <b>{count(jobs[state])}</b> {words(state)}
                  </Link>
                </li>
              );
            })}
          </ul>
        </>
      )}
    </Panel>
  );
}

function RecentIncidents({ incidents, asOfSeq }: { incidents: Incident[]; asOfSeq: number }): ReactElement {
  const rows = usePatchedList("incident", incidents, asOfSeq);
  return (
    <Panel title="Recent incidents" flush actions={<Link to={paths.incidents()}>All incidents</Link>}>
      {rows.length === 0 ? <Empty title="No incidents">Every fault that is found appears here, with what was done about it.</Empty> : <IncidentTable incidents={rows} dense />}
    </Panel>
  );
}

function RecentDecisions({ decisions }: { decisions: Decision[] }): ReactElement {
  return (
    <Panel title="Recent decisions" flush>
      {decisions.length === 0 ? (
        <Empty title="No decisions yet">Each automatic act is listed with its reason, evidence and alternatives.</Empty>
      ) : (
        <ul className="rows">{decisions.map((decision) => <li key={decision.id}><DecisionRow decision={decision} /></li>)}</ul>
      )}
    </Panel>
  );
}

function FirstRun(): ReactElement {
  return (
    <Panel title="Add the first node">
      <p>No agent has connected yet. Make an enrolment token, then start the agent on each GPU node:</p>
      <pre className="code">{"holdfast agent enroll --server " + location.origin + " --token <token>\nholdfast agent run"}</pre>
      <p className="muted">Nodes appear on this page as soon as their agent says hello. Then <Link to={paths.submit()}>submit a job</Link>.</p>
    </Panel>
  );
}
