/* Where the training threads of an incident's ranks stood, in groups, then each look. It says of how
   many it was too late, and of how many nothing came. */
import type { ReactElement } from "react";
import type { IncidentDetail } from "../api/types";
import { words } from "../lib/format";
import { Panel } from "../ui/basics";

export function StacksPanel({ incident }: { incident: IncidentDetail }): ReactElement | null {
  const groups = incident.stack_groups;
  if (incident.stacks.length === 0 && !groups) return null;
  return (
    <Panel title="Stacks and Flight Recorders">
      {groups ? <p><b>{groups.sentence}</b> <span className="muted">{groups.note}</span></p> : null}
      {groups?.groups.map((group) => (
        <details key={group.where} className="fold">
          <summary>{group.where} <span className="muted">({group.count}: {group.ranks.join(", ")}{group.count > group.ranks.length ? ", ..." : ""})</span></summary>
          <pre className="code" tabIndex={0}>{group.frames.length > 0 ? group.frames.join("\n") : "no frame is known"}</pre>
        </details>
      ))}
      {incident.stacks.map((stack, i) => (
        <details key={i} className="fold" open={i === 0 && !groups}>
          <summary>rank {stack.rank} <span className="muted">({words(stack.method)})</span></summary>
          <pre className="code" tabIndex={0}>{stack.text}</pre>
        </details>
      ))}
    </Panel>
  );
}
