/* Evidence, alternatives and actions of a decision. */
import type { ReactElement } from "react";
import type { Decision } from "../api/types";
import { gpuSeconds, quantity, words } from "../lib/format";
import { Empty } from "../ui/basics";
import { Icon } from "../ui/icons";
import { Scroll } from "../ui/Scroll";

export function Evidence({ evidence }: { evidence: Decision["evidence"] }): ReactElement {
  const entries = Object.entries(evidence);
  if (entries.length === 0) return <p className="muted">No values were recorded.</p>;
  return (
    <dl className="pairs">
      {entries.map(([key, value]) => {
        const { name, text } = quantity(key, value);
        return <div key={key}><dt>{name}</dt><dd>{text}</dd></div>;
      })}
    </dl>
  );
}

/** The choice first, then what was not chosen, by expected cost; bars share one scale. */
export function AlternativeTable({ decision }: { decision: Decision }): ReactElement {
  const rows = [
    { action: decision.choice, cost: decision.cost_gpu_s, why: decision.reason_code, chosen: true },
    ...[...decision.alternatives]
      .filter((other) => other.action !== decision.choice)
      .sort((a, b) => (a.cost_gpu_s ?? Infinity) - (b.cost_gpu_s ?? Infinity))
      .map((other) => ({ action: other.action, cost: other.cost_gpu_s, why: other.why_not, chosen: false })),
  ];
  const most = Math.max(1e-9, ...rows.map((row) => row.cost ?? 0));
  return (
    <Scroll label="Alternatives">
      <table className="alternatives">
        <thead><tr><th>Action</th><th className="num">Expected cost</th><th><span className="visually-hidden">Cost, compared</span></th><th>Why</th></tr></thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.action} className={row.chosen ? "chosen" : ""}>
              <td className="nowrap">{row.chosen ? <Choice action={row.action} /> : words(row.action)}</td>
              <td className="num">{row.cost === null ? <span className="muted">not priced</span> : gpuSeconds(row.cost)}</td>
              <td className="cost-cell">{row.cost === null ? null : <span className={`cost tone-${row.chosen ? "ok" : "idle"}`} style={{ width: `${Math.max(1, (row.cost / most) * 100)}%` }} />}</td>
              <td className="words">{row.chosen ? `chosen: ${words(row.why)}` : row.why || <span className="muted">more expensive</span>}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

/** What was chosen; to give a job up is no success. */
function Choice({ action }: { action: string }): ReactElement {
  const lost = action === "fail" || action === "failed";
  return <span className={`badge tone-${lost ? "bad" : "ok"}`}><Icon name={lost ? "cross" : "check"} size={13} /> {words(action)}</span>;
}

export function Actions({ actions }: { actions: Decision["actions"] }): ReactElement {
  if (actions.length === 0) return <Empty icon="eye" title="No command was given" />;
  return (
    <ol className="actions">
      {actions.map((item, i) => {
        const { action, ...rest } = item;
        return (
          <li key={i}>
            <details className="fold">
              <summary>{words(String(action))} <span className="muted">{summary(rest)}</span></summary>
              <pre className="code" tabIndex={0}>{JSON.stringify(rest, null, 2)}</pre>
            </details>
          </li>
        );
      })}
    </ol>
  );
}

/** Scalars of an action on one line; structures stay in the fold. */
function summary(rest: Record<string, unknown>): string {
  return Object.entries(rest)
    .filter(([, value]) => typeof value !== "object")
    .map(([name, value]) => quantity(name, value))
    .map(({ name, text }) => `${name} ${text}`)
    .join(", ");
}
