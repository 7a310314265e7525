/* The projects that the reader sees: what each may use, uses and waits for. */
import { useInfiniteQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import { Link } from "react-router";
import * as queries from "../api/queries";
import type { Project } from "../api/types";
import { count, words } from "../lib/format";
import { paths } from "../lib/paths";
import { fullness, limitText, visibilityText } from "../lib/projects";
import { Bar, Empty, Loaded, PageHead, Panel, Skeleton } from "../ui/basics";
import { More } from "../ui/More";
import { Scroll } from "../ui/Scroll";

export function ProjectsPage(): ReactElement {
  const query = useInfiniteQuery(queries.projects());
  return (
    <>
      <title>Projects - Holdfast</title>
      <PageHead title="Projects"><p className="muted">GPUs by project, as the queue counts them now.</p></PageHead>
      <Loaded query={query} skeleton={<Skeleton height={240} />}>
        {(data) => {
          const { rows, total } = queries.whole(data);
          if (rows.length === 0) return <div className="panel"><Empty icon="question" title="You see no project">An administrator makes one with <code>holdfast project create</code>, or takes you into one.</Empty></div>;
          return (
            <Panel title="Projects" flush>
              <ProjectTable rows={rows} />
              <More query={query} shown={rows.length} total={total} one="project" many="projects" />
            </Panel>
          );
        }}
      </Loaded>
    </>
  );
}

function ProjectTable({ rows }: { rows: Project[] }): ReactElement {
  return (
    <Scroll label="Projects">
      <table>
        <thead>
          <tr><th>Project</th><th className="num">Quota</th><th className="num">In use</th><th>Of the quota</th><th className="num">Borrowed</th><th className="num">Waiting</th><th className="num">Jobs</th><th className="num">Highest priority</th><th>Visibility</th><th>You</th></tr>
        </thead>
        <tbody>{rows.map((row) => <Row key={row.name} project={row} />)}</tbody>
      </table>
    </Scroll>
  );
}

function Row({ project }: { project: Project }): ReactElement {
  const full = fullness(project);
  return (
    <tr>
      <td><Link to={paths.project(project.name)}>{project.name}</Link>{project.description ? <div className="muted">{project.description}</div> : null}</td>
      <td className="num">{project.quota_gpus === null ? <span className="muted">no limit</span> : limitText(project.quota_gpus)}</td>
      <td className="num">{count(project.in_use_gpus)}</td>
      <td>{full === null ? <span className="muted">no quota</span> : <Bar ratio={full} tone={full > 1 ? "warn" : "info"} label={`Quota of ${project.name} in use`} />}</td>
      <td className={`num ${project.borrowed_gpus > 0 ? "text-warn" : ""}`}>{count(project.borrowed_gpus)}</td>
      <td className="num">{project.waiting_jobs === 0 ? "0" : `${count(project.waiting_gpus)} for ${count(project.waiting_jobs)} ${project.waiting_jobs === 1 ? "job" : "jobs"}`}</td>
      <td className="num"><Link to={paths.jobs({ project: project.name })}>{count(project.live_jobs)}</Link></td>
      <td className="num">{project.max_priority}</td>
      <td title={visibilityText(project.visibility)}>{words(project.visibility)}</td>
      <td>{project.scope}</td>
    </tr>
  );
}
