/* How mature each resilience feature is, beside what this job's spec sets of it. */
import type { ReactElement } from "react";
import { FEATURES } from "../lib/maturity.gen";
import { setBy } from "../lib/maturity";
import { Icon } from "../ui/icons";
import { Scroll } from "../ui/Scroll";

const LOOK = { production: { icon: "check", tone: "ok" }, experimental: { icon: "question", tone: "warn" } } as const;

export function Maturity({ spec }: { spec: unknown }): ReactElement {
  return (
    <section aria-label="How mature each feature is">
      <h3 className="padded">How mature each feature is</h3>
      <p className="padded muted">No single feature covers all failures. What works on a device is experimental until it was seen on one; all that starts again spends from one budget.</p>
      <Scroll label="How mature each feature is">
        <table>
          <thead><tr><th>Feature</th><th>Layer</th><th>Label</th><th>This job sets</th><th>What was shown</th></tr></thead>
          <tbody>
            {FEATURES.map((feature) => (
              <tr key={feature.name}>
                <td className="words">{feature.title}</td>
                <td className="nowrap">{feature.layer}</td>
                <td><span className={`badge badge-compact tone-${LOOK[feature.label].tone}`}><Icon name={LOOK[feature.label].icon} size={13} /> {feature.label}</span></td>
                <td className="words">{feature.fields.length === 0 ? <span className="muted">always there</span> : feature.fields.map((field) => <div key={field}><code>{setBy(spec, field)}</code></div>)}</td>
                <td className="words">{feature.shown}{feature.why === "" ? null : <div className="muted">Not in production: {feature.why}</div>}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}
