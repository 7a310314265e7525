/* The control plane's own health, part by part, from the live push where there is one. */
import type { ReactElement } from "react";
import type { Health, HealthPart } from "../api/types";
import { count, duration } from "../lib/format";
import { useLive } from "../live/hooks";
import { Icon } from "../ui/icons";

function Part({ name, part }: { name: string; part: HealthPart }): ReactElement {
  const beat = part.beat_age_s === undefined || part.beat_age_s === null ? "" : `, beat ${duration(part.beat_age_s)} ago`;
  return (
    <li className={`health-part tone-${part.ok ? "ok" : "bad"}`} title={part.detail + beat}>
      <Icon name={part.ok ? "check" : "cross"} size={13} />
      <b>{name}</b>
      <span>{part.ok ? "ok" : part.detail || "down"}</span>
    </li>
  );
}

/** How far the fleet's policy lets its rules go. */
export const modeOf = ({ mode, rules_held }: Pick<Health, "mode" | "rules_held">): string => (rules_held > 0 ? `${mode}, ${rules_held} ${rules_held === 1 ? "rule" : "rules"} held back` : mode);

export function HealthStrip({ health: snapshot }: { health: Health }): ReactElement {
  const health = useLive((state) => state.data.health) ?? snapshot;
  const allAgents = health.agents_connected >= health.agents_total;
  const slow = (health.outbox_oldest_s ?? 0) > 5;
  return (
    <ul className="health" aria-label="Control plane health">
      <Part name="Database" part={health.database} />
      <Part name="Redis" part={health.redis} />
      <Part name="Sentinel" part={health.sentinel} />
      <Part name="Workers" part={health.worker} />
      <li className={`health-part tone-${allAgents ? "ok" : "warn"}`} title="Agents connected now">
        <Icon name={allAgents ? "check" : "unplug"} size={13} /> <b>Agents</b> <span>{count(health.agents_connected)} / {count(health.agents_total)}</span>
      </li>
      <li className={`health-part tone-${slow ? "warn" : "ok"}`} title="Commands committed and not yet delivered">
        <Icon name={slow ? "hourglass" : "check"} size={13} /> <b>Outbox</b>
        <span>{count(health.outbox_pending)} pending{health.outbox_pending > 0 ? `, oldest ${duration(health.outbox_oldest_s)}` : ""}</span>
      </li>
      {health.dead_letters > 0 ? (
        <li className="health-part tone-warn" title="Events of agents that could not be applied; each node's page lists its own">
          <Icon name="alert" size={13} /> <b>Put aside</b> <span>{count(health.dead_letters)} event{health.dead_letters === 1 ? "" : "s"}</span>
        </li>
      ) : null}
      <li className="health-part tone-info" title="How far the fleet's policy lets its rules act by themselves; jobs and projects may narrow it"><Icon name="shield" size={13} /> <b>Mode</b> <span>{modeOf(health)}</span></li>
    </ul>
  );
}
