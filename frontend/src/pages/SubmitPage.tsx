/* Submit a job: YAML in, every fault at once with its pointer, a dry run before the real one. */
import { useQuery } from "@tanstack/react-query";
import { type ReactElement, useRef, useState } from "react";
import { useNavigate } from "react-router";
import { newKey, post } from "../api/client";
import * as queries from "../api/queries";
import type { DryRun, Job } from "../api/types";
import { paths } from "../lib/paths";
import { draftOf, keepDraft, projectOf } from "../lib/draft";
import { ActButton, ANYWHERE } from "../ui/ActButton";
import { FaultList, PageHead, Panel, Problem } from "../ui/basics";
import { Icon } from "../ui/icons";

const EXAMPLE = `apiVersion: holdfast/v1
kind: TrainJob
metadata:
  name: my-first-job
  project: default
spec:
  resources: {nodes: 3, gpus_per_node: 2, min_replicas: 2}
  parallelism: {tp: 1, pp: 2, cp: 1, dp: auto}
  training: {steps: 200, global_batch: 12, micro_batch: 1}
  checkpoint: {interval_steps: 50, keep: 3}
  resiliency: {mode: enforce, allow_faults: true}
`;

const DRAFT = "spec";

export function SubmitPage(): ReactElement {
  const kept = useRef(draftOf(DRAFT));
  const [text, setText] = useState(kept.current ?? EXAMPLE);
  /* The text that the answer beside it is about. */
  const [asked, setAsked] = useState("");
  const [dry, setDry] = useState<DryRun | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  /* One key for one text: pressing twice, or again after a lost answer, makes one job. */
  const [key, setKey] = useState(newKey);
  const navigate = useNavigate();
  const mine = useQuery({ ...queries.me(), enabled: false }).data?.projects ?? {};
  /* Of a project that it does not see, or a text that is half written, the server says what is wrong. */
  const named = projectOf(text);
  const project = named !== null && named in mine ? named : ANYWHERE;
  const run = async (send: () => Promise<void>): Promise<void> => {
    setBusy(true);
    setError(null);
    setDry(null);
    setAsked(text);
    try {
      await send();
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  const check = (): Promise<void> => run(async () => setDry((await post("/jobs", {}, text, { query: { dry_run: true } })) as DryRun));
  const submit = (): Promise<void> => run(async () => {
    const job = (await post("/jobs", {}, text, { idempotencyKey: key })) as Job;
    keepDraft(DRAFT, null);
    void navigate(paths.job(job.id));
  });
  const write = (next: string): void => {
    setText(next);
    setKey(newKey());
    keepDraft(DRAFT, next === EXAMPLE ? null : next);
  };
  return (
    <>
      <title>Submit a job - Holdfast</title>
      <PageHead crumbs={[{ to: paths.jobs(), text: "Jobs" }]} title="Submit a job" />
      <div className="grid-2">
        <Panel title="Job spec (YAML)">
          <textarea
            aria-label="Job spec" rows={24} spellCheck={false} value={text}
            onChange={(event) => write(event.target.value)}
          />
          <p className="muted">
            {text === EXAMPLE ? "An example. What you write is kept in this browser until it is submitted." : kept.current === text ? "Your draft, as you left it." : "Kept in this browser until it is submitted."}
            {text === EXAMPLE ? null : <> <button type="button" className="link" onClick={() => write(EXAMPLE)}>Start again from the example</button></>}
          </p>
          <div className="dialog-actions">
            <ActButton does="/jobs" project={project} busy={busy} onPress={() => void check()}>Check</ActButton>
            <ActButton does="/jobs" project={project} className="primary" busy={busy} onPress={() => void submit()}>Submit</ActButton>
          </div>
        </Panel>
        <Panel title="What would happen">
          {(error || dry) && asked !== text ? <p className="notice tone-warn" role="status">This result is for the text before your last change.</p> : null}
          {error ? <Problem error={error} /> : null}
          {dry ? <DryRunView dry={dry} /> : error ? null : <p className="muted">Check shows every fault at once, the defaults that are filled in, and where the job would run. Nothing is started.</p>}
        </Panel>
      </div>
    </>
  );
}

function DryRunView({ dry }: { dry: DryRun }): ReactElement {
  const { faults } = dry;
  return (
    <div className="stack">
      {faults.length > 0 ? (
        <FaultList faults={faults} />
      ) : (
        <p className="answer"><Icon name="check" /> {dry.placement ? "It would start now." : `It is valid, and would wait: ${dry.waits_for}.`}</p>
      )}
      {dry.placement ? <details className="fold" open><summary>Placement</summary><pre className="code" tabIndex={0}>{JSON.stringify(dry.placement, null, 2)}</pre></details> : null}
      <details className="fold"><summary>Effective spec ({dry.defaults.length} defaults filled in)</summary><pre className="code" tabIndex={0}>{JSON.stringify(dry.spec, null, 2)}</pre></details>
    </div>
  );
}
