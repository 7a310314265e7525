/* What a document would have changed of the decisions of the last day or week: nothing is stored. */
import { type ReactElement, useState } from "react";
import { Link } from "react-router";
import { post } from "../api/client";
import type { PolicyReplay } from "../api/types";
import { type Change, type Differing, type DryRunResult, type PolicyOf, listed, merged } from "../lib/policy";
import { paths } from "../lib/paths";
import { useSubmitting } from "../lib/submitting";
import { ActButton } from "../ui/ActButton";
import { Empty, Panel, Problem, Time } from "../ui/basics";
import { Scroll } from "../ui/Scroll";

const DAY_S = 86_400;
const SHOWN = 100;

export function PolicyDryRun({ text, of, project, changed }: { text: string; of: PolicyOf; project: string | null; changed: boolean }): ReactElement {
  const [result, setResult] = useState<DryRunResult | null>(null);
  const [asked, setAsked] = useState("");
  const [seen, setSeen] = useState(0);
  const { busy, error, send } = useSubmitting();
  const run = (days: number): Promise<void> => send(async () => {
    setResult(null);
    setAsked(text);
    const pages: PolicyReplay[] = [];
    let cursor: string | null = "";
    while (cursor !== null) {
      const page: PolicyReplay = await post("/policy:replay", {}, { since_s: days * DAY_S, text, ...of, cursor, limit: 500 });
      pages.push(page);
      setSeen(pages.reduce((sum, each) => sum + each.replayed, 0));
      cursor = page.next;
    }
    setResult(merged(pages));
  });
  return (
    <Panel
      title="What it would have changed"
      actions={<>
        <ActButton does="/policy:replay" project={project} busy={busy} onPress={() => void run(1)}>Dry run: last day</ActButton>
        <ActButton does="/policy:replay" project={project} busy={busy} onPress={() => void run(7)}>Last week</ActButton>
      </>}
    >
      {(result || error) && asked !== text ? <p className="notice tone-warn" role="status">This result is for the text before your last change.</p> : null}
      {error ? <Problem error={error} /> : null}
      {busy ? <p className="muted" role="status">{seen} decisions made again...</p> : null}
      {result ? <Result result={result} /> : error || busy ? null : <p className="muted">A dry run makes the recorded decisions again by {changed ? "your text" : "this document"}, and says which would be different. Nothing is stored or carried out.</p>}
    </Panel>
  );
}

export function Changes({ changes }: { changes: Change[] }): ReactElement {
  if (changes.length === 0) return <p className="muted">It changes nothing that is in force.</p>;
  return <ul className="policy-changes">{changes.map((each) => <li key={each.field}><code>{each.field}</code> {each.before ?? "-"} to <b>{each.after ?? "-"}</b></li>)}</ul>;
}

function Result({ result }: { result: DryRunResult }): ReactElement {
  const { more, fewer, differences } = result;
  const cost = Math.round(result.costGpuS);
  return (
    <div className="stack">
      <Changes changes={result.changes} />
      <p role="status" className="answer">
        {result.replayed} decisions: {result.equal} as they were, {differences.length} different.
        {Object.keys(fewer).length > 0 ? ` It would not have carried out: ${listed(fewer)}.` : ""}
        {Object.keys(more).length > 0 ? ` It would also have carried out: ${listed(more)}.` : ""}
        {result.priced > 0 ? ` By their own prices the acts would have cost ${Math.abs(cost)} GPU-seconds ${cost < 0 ? "less" : "more"}; what it costs not to act is not in this.` : ""}
      </p>
      {differences.length === 0 ? <Empty title="No recorded decision would be different" /> : <Table rows={differences.slice(0, SHOWN)} />}
      {differences.length > SHOWN ? <p className="muted">{differences.length - SHOWN} more; <code>holdfast policy dry-run</code> lists them all.</p> : null}
      {Object.entries(result.leftOut).map(([reason, number]) => <p key={reason} className="muted">Not compared: {number}, {reason}.</p>)}
    </div>
  );
}

function Table({ rows }: { rows: Differing[] }): ReactElement {
  return (
    <Scroll label="Decisions that would be different">
      <table>
        <thead><tr><th>Decision</th><th>Job</th><th>Was</th><th>Would be</th><th>At</th></tr></thead>
        <tbody>
          {rows.map((row) => (
            <tr key={`${row.decision_id} ${row.key}`}>
              <td><Link to={paths.decision(row.decision_id)}>{row.kind}</Link></td>
              <td>{row.job_id ? <Link to={paths.job(row.job_id)}>{row.job_name ?? row.job_id}</Link> : <span className="muted">fleet</span>}</td>
              <Side made={row.before} />
              <Side made={row.after} />
              <td><Time at={row.at} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Side({ made }: { made: Differing["before"] }): ReactElement {
  if (!made) return <td className="muted">nothing</td>;
  return <td className="words">{made.choice.replaceAll("_", " ")} <span className="muted">({made.mode}{made.cost_gpu_s === null ? "" : `, ${Math.round(made.cost_gpu_s)} GPU-seconds`})</span><div className="muted">{made.sentence}</div></td>;
}
