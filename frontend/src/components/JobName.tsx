/* A job's name, which leads to its page where there is one for the reader. */
import type { ReactElement } from "react";
import { Link } from "react-router";
import { paths } from "../lib/paths";
import { UNSEEN } from "../lib/projects";

/** Of a project that is not seen a job has neither name nor page. */
export function JobName({ job }: { job: { id: string; name: string } }): ReactElement {
  return job.id === UNSEEN ? <>{job.name}</> : <Link to={paths.job(job.id)}>{job.name}</Link>;
}
