/* By which settings is decided: the document as a form or as YAML, what it would change, and its versions. */
import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { type ReactElement, useState } from "react";
import { Link, useSearchParams } from "react-router";
import { post } from "../api/client";
import * as queries from "../api/queries";
import type { Policy } from "../api/types";
import { PolicyDryRun } from "../components/PolicyDryRun";
import { PolicyForm } from "../components/PolicyForm";
import { PolicyShadow } from "../components/PolicyShadow";
import { PolicyVersions } from "../components/PolicyVersions";
import { paths } from "../lib/paths";
import { Loaded, PageHead, Panel, Problem, Skeleton } from "../ui/basics";
import { ConfirmDialog } from "../ui/dialog";
import { Tabs } from "../ui/tabs";

export function PoliciesPage(): ReactElement {
  const [params] = useSearchParams();
  const job = params.get("job") ?? "";
  const query = useQuery(queries.policy(job));
  return (
    <>
      <title>Policies - Holdfast</title>
      <Loaded query={query} head={<PageHead title="Policies" />} skeleton={<Skeleton height={280} />}>
        {(policy) => <Editor key={`${job} ${policy.number}`} policy={policy} job={job} />}
      </Loaded>
    </>
  );
}

function Editor({ policy, job }: { policy: Policy; job: string }): ReactElement {
  const [text, setText] = useState(policy.text);
  const [asks, setAsks] = useState(false);
  const me = useQuery(queries.me()).data;
  const client = useQueryClient();
  const changed = text !== policy.text;
  /* A job's is its project's matter: whether he administers that one, the server judges. */
  const admin = me !== undefined && (me.roles.includes("admin") || (job !== "" && Object.values(me.projects).includes("admin")));
  const store = async (reason: string): Promise<string> => {
    const made = await post("/policy:put", {}, { text, parent: policy.number, reason, job_id: job });
    return `Version ${made.number} is in force with each job's next pass.`;
  };
  const close = (): void => {
    setAsks(false);
    void client.invalidateQueries({ queryKey: queries.keys.policy });
  };
  return (
    <>
      <PageHead
        title="Policies"
        badge={<span className="badge tone-idle" title="Every decision made by it carries this hash">version {policy.version}</span>}
        crumbs={policy.job_id ? [{ to: paths.job(policy.job_id), text: policy.job_name ?? policy.job_id }] : undefined}
      >
        <p className="muted">
          {policy.job_id ? <>The policy of <b>{policy.job_name}</b>: it may only narrow <Link to={paths.policies()}>the fleet's</Link>. </> : "The fleet's policy, for every job; a job's own may only narrow it. "}
          {policy.number === 0 ? "Nobody has changed it: every field has its default." : `Document ${policy.number}.`}
        </p>
        <Scope job={job} />
      </PageHead>
      <div className="grid-2">
        <Panel title="Document">
          <Tabs
            label="Editor"
            tabs={[
              { id: "form", label: "Form", body: () => <PolicyForm policy={policy} text={text} write={setText} /> },
              { id: "yaml", label: "YAML", body: () => <textarea aria-label="Policy document" rows={22} spellCheck={false} value={text} onChange={(event) => setText(event.target.value)} /> },
            ]}
          />
          <div className="dialog-actions">
            <button type="button" className="button" disabled={!changed} onClick={() => setText(policy.text)}>Discard changes</button>
            <button type="button" className="button primary" disabled={!changed || !admin} title={admin ? undefined : "This needs an administrator"} onClick={() => setAsks(true)}>Put in force</button>
          </div>
        </Panel>
        <div className="stack">
          <PolicyDryRun text={text} job={job} changed={changed} />
          {job === "" ? <PolicyShadow policy={policy} text={text} changed={changed} admin={admin} /> : null}
          <PolicyVersions policy={policy} job={job} admin={admin} />
        </div>
      </div>
      {asks ? (
        <ConfirmDialog
          title="Put this policy in force" confirmLabel="Put in force" danger onClose={close} onConfirm={store}
          blastRadius={<>{policy.job_id ? <>Every decision about <b>{policy.job_name}</b></> : <>Every decision of <b>the whole fleet</b></>} is made by it from the next pass on. A dry run says what it would have changed. It is taken back in one click below.</>}
        />
      ) : null}
    </>
  );
}

/** Whose policy is shown: the fleet's, or a job's that is not over. */
function Scope({ job }: { job: string }): ReactElement {
  const [, setParams] = useSearchParams();
  const query = useInfiniteQuery(queries.jobs("pending,starting,running,recovering,preempted,resuming", ""));
  const { rows } = queries.whole(query.data);
  if (query.error) return <Problem error={query.error} />;
  return (
    <label className="field policy-scope">
      <span>Policy of</span>
      <select value={job} onChange={(event) => setParams(event.target.value === "" ? {} : { job: event.target.value })}>
        <option value="">the fleet</option>
        {job !== "" && !rows.some((row) => row.id === job) ? <option value={job}>{job}</option> : null}
        {rows.map((row) => <option key={row.id} value={row.id}>{row.name}</option>)}
      </select>
    </label>
  );
}
