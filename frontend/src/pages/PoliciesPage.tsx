/* By which settings is decided: the document as a form or as YAML, what it would change, and its versions. */
import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { type ReactElement, useEffect, useState } from "react";
import { Link, useSearchParams } from "react-router";
import { post } from "../api/client";
import * as queries from "../api/queries";
import { holdTyped } from "../api/signin";
import type { Policy } from "../api/types";
import { PolicyDryRun } from "../components/PolicyDryRun";
import { PolicyForm } from "../components/PolicyForm";
import { PolicyShadow, UNCHANGED } from "../components/PolicyShadow";
import { PolicyVersions } from "../components/PolicyVersions";
import { XidTable } from "../components/XidTable";
import { paths } from "../lib/paths";
import { type PolicyOf, chosen, paramsOf, policyOf } from "../lib/policy";
import { ActButton } from "../ui/ActButton";
import { Loaded, PageHead, Panel, Problem, Skeleton } from "../ui/basics";
import { ConfirmDialog } from "../ui/dialog";
import { Tabs } from "../ui/tabs";

export function PoliciesPage(): ReactElement {
  const [params] = useSearchParams();
  const of = policyOf(params);
  const query = useQuery(queries.policy(of));
  return (
    <>
      <title>Policies - Holdfast</title>
      <Loaded query={query} head={<PageHead title="Policies" />} skeleton={<Skeleton height={280} />}>
        {(policy) => <Editor key={`${chosen(of)} ${policy.number}`} policy={policy} of={of} />}
      </Loaded>
    </>
  );
}

function Editor({ policy, of }: { policy: Policy; of: PolicyOf }): ReactElement {
  const [text, setText] = useState(policy.text);
  const [asks, setAsks] = useState(false);
  const client = useQueryClient();
  const changed = text !== policy.text;
  useEffect(() => (changed ? holdTyped() : undefined), [changed]);
  const store = async (reason: string): Promise<string> => {
    const made = await post("/policy:put", {}, { text, parent: policy.number, reason, ...of });
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
          <Above policy={policy} />
          {policy.number > 0 ? `Document ${policy.number}.` : policy.project === null ? "Nobody has changed it: every field has its default." : "It has no document of its own."}
        </p>
        <Scope of={of} />
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
            <ActButton does="/policy:put" project={policy.project} className="primary" why={changed ? "" : UNCHANGED} onPress={() => setAsks(true)}>Put in force</ActButton>
          </div>
        </Panel>
        <div className="stack">
          <PolicyDryRun text={text} of={of} project={policy.project} changed={changed} />
          {policy.project === null ? <PolicyShadow policy={policy} text={text} changed={changed} /> : null}
          <PolicyVersions policy={policy} of={of} />
        </div>
      </div>
      {policy.project === null ? <XidTable /> : null}
      {asks ? (
        <ConfirmDialog
          title="Put this policy in force" confirmLabel="Put in force" danger onClose={close} onConfirm={store}
          blastRadius={<>{policy.job_id ? <>Every decision about <b>{policy.job_name}</b></> : policy.project ? <>Every decision about the jobs of the project <b>{policy.project}</b></> : <>Every decision of <b>the whole fleet</b></>} is made by it from the next pass on. A dry run says what it would have changed. It is taken back in one click below.</>}
        />
      ) : null}
    </>
  );
}

/** What it may narrow, with the way up. */
function Above({ policy }: { policy: Policy }): ReactElement {
  const fleet = <Link to={paths.policies()}>the fleet's</Link>;
  if (policy.project === null) return <>The fleet's policy, for every job; those of projects and jobs may only narrow it. </>;
  if (policy.job_id === null) return <>The policy of the project <Link to={paths.project(policy.project)}>{policy.project}</Link>: it may only narrow {fleet}. </>;
  return <>The policy of <b>{policy.job_name}</b>: it may only narrow that of <Link to={paths.policies(policy.project)}>{policy.project}</Link>, and that {fleet}. </>;
}

/** Whose policy is shown: the fleet's, a project's, or a job's that is not over. */
function Scope({ of }: { of: PolicyOf }): ReactElement {
  const [, setParams] = useSearchParams();
  const jobs = useInfiniteQuery(queries.jobs("pending,starting,running,recovering,preempted,resuming", ""));
  const projects = useInfiniteQuery(queries.projects());
  const error = jobs.error ?? projects.error;
  if (error) return <Problem error={error} />;
  const rows = queries.whole(jobs.data).rows;
  const names = queries.whole(projects.data).rows;
  const known = names.some((row) => row.name === of.project) || rows.some((row) => row.id === of.job_id);
  return (
    <label className="field policy-scope">
      <span>Policy of</span>
      <select value={chosen(of)} onChange={(event) => setParams(paramsOf(event.target.value))}>
        <option value="">the fleet</option>
        {chosen(of) !== "" && !known ? <option value={chosen(of)}>{of.job_id || of.project}</option> : null}
        <optgroup label="Projects">
          {names.map((row) => <option key={row.name} value={chosen({ job_id: "", project: row.name })}>{row.name}</option>)}
        </optgroup>
        <optgroup label="Jobs">
          {rows.map((row) => <option key={row.id} value={chosen({ job_id: row.id, project: "" })}>{row.name}</option>)}
        </optgroup>
      </select>
    </label>
  );
}
