/* One project: its quota and what is used of it, who is in it, and its jobs. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import { Link, useParams } from "react-router";
import * as queries from "../api/queries";
import type { ProjectDetail } from "../api/types";
import { count, words } from "../lib/format";
import { ENDED_STATES } from "../lib/jobnow";
import { paths } from "../lib/paths";
import { lendsText, limitText, visibilityText } from "../lib/projects";
import { ProjectBill } from "../components/ProjectBill";
import { Empty, Figure, Loaded, PageHead, Panel, Skeleton, Time } from "../ui/basics";
import { Scroll } from "../ui/Scroll";
import { STYLES, StateBadge } from "../ui/states";

export function ProjectPage(): ReactElement {
  const { name = "" } = useParams();
  const query = useQuery(queries.project(name));
  const crumbs = [{ to: paths.projects(), text: "Projects" }];
  return (
    <>
      <title>{`${name} - Holdfast`}</title>
      <Loaded query={query} head={<PageHead crumbs={crumbs} title={name} />} skeleton={<Skeleton height={280} />}>
        {(project) => (
          <>
            <PageHead crumbs={crumbs} title={project.name} badge={<span className="badge tone-idle" title={visibilityText(project.visibility)}>{words(project.visibility)}</span>} actions={<Link to={paths.policies(project.name)} className="button">Policy</Link>}>
              <p className="muted">{project.description || visibilityText(project.visibility).replace(/^./, (first) => first.toUpperCase())}</p>
              <p className="muted">You may: {project.scope}.</p>
            </PageHead>
            <Usage project={project} />
            <div className="grid-2">
              <Jobs name={project.name} />
              <Members project={project} />
            </div>
            <ProjectBill name={project.name} />
          </>
        )}
      </Loaded>
    </>
  );
}

function Usage({ project }: { project: ProjectDetail }): ReactElement {
  return (
    <dl className="figures">
      <Figure label="Quota" value={limitText(project.quota_gpus)} note="GPUs of its own" />
      <Figure label="In use" value={count(project.in_use_gpus)} note={project.borrowed_gpus > 0 ? `${project.borrowed_gpus} of them borrowed` : "nothing borrowed"} tone={project.borrowed_gpus > 0 ? "warn" : undefined} />
      <Figure label="Waiting" value={count(project.waiting_gpus)} note={`for ${count(project.waiting_jobs)} ${project.waiting_jobs === 1 ? "job" : "jobs"}`} />
      <Figure label="May borrow" value={limitText(project.borrow_limit_gpus)} note="of what others leave unused" />
      <Figure label="May lend" value={lendsText(project)} note={project.quota_gpus === null ? "it has no quota" : "of what it leaves unused"} />
      <Figure label="Highest priority" value={String(project.max_priority)} note={`weight ${project.weight}`} />
    </dl>
  );
}

const LIVE = Object.keys(STYLES.job).filter((state) => !ENDED_STATES.has(state)).join(",");

function Jobs({ name }: { name: string }): ReactElement {
  const query = useInfiniteQuery(queries.jobs(LIVE, "", name));
  return (
    <Panel title="Jobs" flush actions={<Link to={paths.jobs({ project: name })} className="button">All of its jobs</Link>}>
      <Loaded query={query}>
        {(data) => {
          const { rows } = queries.whole(data);
          if (rows.length === 0) return <Empty icon="list" title="No job now" />;
          return (
            <Scroll label="Jobs">
              <table>
                <thead><tr><th>State</th><th>Job</th><th className="num">Priority</th><th>Owner</th></tr></thead>
                <tbody>
                  {rows.map((job) => (
                    <tr key={job.id}>
                      <td><StateBadge kind="job" state={job.state} detail={job.state_reason} /></td>
                      <td><Link to={paths.job(job.id)}>{job.name}</Link></td>
                      <td className="num">{job.priority}</td>
                      <td>{job.owner}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </Scroll>
          );
        }}
      </Loaded>
    </Panel>
  );
}

function Members({ project }: { project: ProjectDetail }): ReactElement {
  const left = project.member_count - project.members.length;
  return (
    <Panel title="Members" flush>
      {project.members.length === 0 ? (
        <Empty icon="key" title="No members">An administrator of the project takes somebody in with <code>holdfast project set-member {project.name} ACCOUNT ROLE</code>.</Empty>
      ) : (
        <Scroll label="Members">
          <table>
            <thead><tr><th>Account</th><th>Role</th><th>Since</th></tr></thead>
            <tbody>
              {project.members.map((member) => (
                <tr key={member.account}><td>{member.account}</td><td>{member.role}</td><td><Time at={member.since} /></td></tr>
              ))}
              {left > 0 ? <tr><td className="muted" colSpan={3}>and {count(left)} more</td></tr> : null}
            </tbody>
          </table>
        </Scroll>
      )}
    </Panel>
  );
}
