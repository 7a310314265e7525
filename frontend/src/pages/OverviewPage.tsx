/* The fleet at a glance (E50): what runs, what is wrong, what was decided, and is the control plane itself well. */
import { useQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import { Link } from "react-router";
import * as queries from "../api/queries";
import type { Decision, Incident, JobState, Overview } from "../api/types";
import { Breakers } from "../components/Breakers";
import { DecisionRow } from "../components/DecisionRow";
import { HealthStrip, modeOf } from "../components/HealthStrip";
import { EndingBadge, IncidentTable } from "../components/IncidentTable";
import { FleetMap } from "../components/FleetMap";
import { count, percent, words } from "../lib/format";
import { paths } from "../lib/paths";
import { usePatchedList } from "../live/hooks";
import { Empty, Figure, Loaded, PageHead, Panel, Skeleton, Time } from "../ui/basics";
import { Icon } from "../ui/icons";
import { styleOf } from "../ui/states";

const JOB_ORDER: JobState[] = ["running", "recovering", "resuming", "starting", "preempted", "pending", "succeeded", "failed", "cancelled"];

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
  const nodes = Object.values(data.nodes).reduce((sum, n) => sum + (n ?? 0), 0);
  const empty = data.devices.total === 0 && nodes === 0;
  return (
    <>
      <HealthStrip health={data.health} />
      <Breakers breakers={data.breakers} />
      <Attention attention={data.attention} />
      <Figures data={data} nodes={nodes} />
      <JobsByState jobs={data.jobs} />
      {empty ? <FirstRun /> : <FleetMap total={nodes} />}
      <div className="grid-2">
        <RecentIncidents incidents={data.recent_incidents} asOfSeq={data.as_of_seq} />
        <RecentDecisions decisions={data.recent_decisions} />
      </div>
    </>
  );
}

/** In red until it is over or somebody has said that it is theirs. */
function Attention({ attention }: { attention: Overview["attention"] }): ReactElement | null {
  const { lost, hardware, live } = attention;
  const parts = [
    lost > 0 ? `${lost} ${lost === 1 ? "job" : "jobs"} failed` : "",
    hardware > 0 ? `${hardware} ${hardware === 1 ? "incident needs" : "incidents need"} hardware` : "",
    live > 0 ? `${live} ${live === 1 ? "incident is" : "incidents are"} being handled` : "",
  ].filter(Boolean);
  if (parts.length === 0) return null;
  return (
    <section className={`notice tone-${lost + hardware > 0 ? "bad" : "warn"}`} aria-label="Needs attention">
      <Icon name="alert" />
      <div>
        <b>{parts.join(", ")}</b>
        <ul>
          {attention.incidents.map((incident) => (
            <li key={incident.id}>
              <EndingBadge incident={incident} /> <Link to={paths.incident(incident.id)}>{incident.title}</Link>{" "}
              <span className="muted">{incident.job_name ?? incident.node_name} <Time at={incident.opened_at} /></span>
            </li>
          ))}
        </ul>
      </div>
    </section>
  );
}

function openNote({ open_incidents, attention }: Overview): string {
  if (attention.lost > 0) return `${attention.lost} lost, not acknowledged`;
  if (attention.hardware > 0) return `${attention.hardware} ${attention.hardware === 1 ? "waits" : "wait"} for hardware`;
  return open_incidents > 0 ? "being handled" : "nothing to handle";
}

function Figures({ data, nodes }: { data: Overview; nodes: number }): ReactElement {
  const { devices } = data;
  const out = devices.total - devices.healthy - devices.lost;
  return (
    <dl className="figures">
      <Figure label="Goodput, 24 h" value={data.goodput_24h === null ? <span className="missing">{data.goodput_unjudged > 0 ? "too few steps" : "no job ran"}</span> : percent(data.goodput_24h, 1)} note={[data.goodput_estimated ? "estimated" : "", "kept steps x undisturbed step", data.goodput_unjudged > 0 && data.goodput_24h !== null ? `${count(data.goodput_unjudged)} ${data.goodput_unjudged === 1 ? "job has" : "jobs have"} too few steps` : ""].filter(Boolean).join(", ")} title="Kept steps x the undisturbed step over wall time, of the last day's jobs, by their devices; one that began and kept no step counts with all its time" />
      <Figure label="Open incidents" value={count(data.open_incidents)} tone={data.open_incidents + data.attention.lost > 0 ? "bad" : "ok"} note={openNote(data)} />
      <Figure label="Decisions, last hour" value={count(data.decisions_last_hour)} note={`mode: ${modeOf(data.health)}`} />
      <Figure label="Devices" value={count(devices.total)} note={`${count(devices.busy)} busy, ${count(devices.spare)} spare`} />
      <Figure label="Healthy" value={count(devices.healthy)} tone={devices.healthy > 0 ? "ok" : undefined} note={out > 0 ? `${count(out)} out of service` : undefined} />
      <Figure label="Of them at risk" value={count(devices.at_risk)} tone={devices.at_risk > 0 ? "warn" : undefined} />
      <Figure label="Off the bus" value={count(devices.lost)} tone={devices.lost > 0 ? "bad" : undefined} />
      <Figure label="Nodes" value={count(nodes)} note={Object.entries(data.nodes).filter(([, n]) => n).map(([state, n]) => `${count(n)} ${words(state)}`).join(", ")} />
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
              <span key={state} className={`tone-${styleOf("job", state).tone}`} style={{ flexGrow: jobs[state] }} title={`${jobs[state]} ${words(state)}`} />
            ))}
          </div>
          <ul className="legend">
            {shown.map((state) => {
              const { icon, tone, meaning } = styleOf("job", state);
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
        <ul className="rows">{decisions.map((decision) => <li key={decision.id}><DecisionRow decision={decision} ofJob /></li>)}</ul>
      )}
    </Panel>
  );
}

/** The names of node and token agree: the token lets that one node in. */
const FIRST_NODE = [
  "umask 077",
  "holdfast join-token create --name gpu-1 > join-token",
  "python -m agents --server SERVER --join-token-file join-token --name gpu-1",
];

function FirstRun(): ReactElement {
  return (
    <Panel title="Add the first node">
      <p>No agent has connected yet. Make a join token (it is shown once, and is good for an hour), then start the agent with it on a GPU node:</p>
      <pre className="code" tabIndex={0}>{FIRST_NODE.map((line) => line.replace("SERVER", location.origin.replace(/^http/, "ws"))).join("\n")}</pre>
      <p className="muted">Nodes appear on this page as soon as their agent says hello. Then <Link to={paths.submit()}>submit a job</Link>.</p>
    </Panel>
  );
}
