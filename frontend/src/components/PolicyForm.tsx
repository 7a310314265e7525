/* A policy's fields, each with what it does, what is in force, where the default comes from, and a value to set. */
import type { ReactElement } from "react";
import type { Policy } from "../api/types";
import { type Draft, draftFrom, textFrom, withField, withRow } from "../lib/policy";
import { XidActions } from "./XidActions";

type Field = Policy["fields"][number];
const MODES = ["observe", "recommend", "enforce"];

export function PolicyForm({ policy, text, write }: { policy: Policy; text: string; write: (text: string) => void }): ReactElement {
  const draft = draftFrom(text);
  if (!draft) return <p className="notice tone-warn" role="status">This text says more than the form can show, or is not finished: edit it as YAML.</p>;
  const narrows = policy.project !== null;
  const fields = policy.fields.filter((field) => !narrows || field.safer !== "");
  const groups = [...new Set(fields.map((field) => field.group))];
  const set = (next: Draft): void => write(textFrom(next));
  const modes = typeof draft["rule_modes"] === "object" ? draft["rule_modes"] : {};
  const touched = (name: string): boolean => fields.some((field) => field.group === name && field.name in draft);
  return (
    <div className="stack policy-form">
      <details className="fold" open>
        <summary>How far rules may go by themselves</summary>
        {policy.rules.map((rule) => (
          <label key={rule} className="policy-row">
            <span><code>{rule}</code></span>
            <select value={modes[rule] ?? ""} onChange={(event) => set(withRow(draft, "rule_modes", rule, event.target.value))}>
              <option value="">{narrows ? `as above (${policy.modes[rule] ?? "enforce"})` : "enforce (default)"}</option>
              {MODES.map((mode) => <option key={mode} value={mode}>{mode}</option>)}
            </select>
          </label>
        ))}
      </details>
      {groups.map((group) => (
        <details key={group} className="fold" open={touched(group)}>
          <summary>{group.slice(0, 1).toUpperCase() + group.slice(1)}</summary>
          {fields.filter((field) => field.group === group).map((field) => (
            <Row key={field.name} field={field} measured={policy.measured.find((seen) => seen.field === field.name)} value={typeof draft[field.name] === "string" ? String(draft[field.name]) : ""} set={(value) => set(withField(draft, field.name, value))} />
          ))}
        </details>
      ))}
      {narrows ? null : <XidActions draft={draft} set={set} />}
    </div>
  );
}

function Row({ field, measured, value, set }: { field: Field; measured: Policy["measured"][number] | undefined; value: string; set: (value: string) => void }): ReactElement {
  const unit = field.unit === "s" ? " s" : "";
  return (
    <label className="policy-row">
      <span>
        <code>{field.name}</code> <span className="muted">in force {field.value}{unit}{field.set_by === "default" ? "" : `, set by the ${field.set_by}`}</span>
        <span className="policy-what">{field.what}</span>
        <span className="muted">Default {field.default}{unit} ({field.source}: {field.because}). May be {field.least} to {field.most}{unit}.{measured ? ` Measured here: ${measured.what} takes ${measured.p99_s.toPrecision(3)} s (p99 of ${measured.samples}).` : ""}</span>
      </span>
      <input inputMode="decimal" value={value} placeholder={String(field.value)} aria-label={field.name} onChange={(event) => set(event.target.value)} />
    </label>
  );
}
