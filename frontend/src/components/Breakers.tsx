/* Breakers that are open: what automation does not do, why, what waits for it, and the button that lets it continue. */
import { type ReactElement, useState } from "react";
import { Link } from "react-router";
import { post } from "../api/client";
import * as queries from "../api/queries";
import type { Breaker } from "../api/types";
import { count } from "../lib/format";
import { paths } from "../lib/paths";
import { useRefresh } from "../live/hooks";
import { ActButton } from "../ui/ActButton";
import { Time } from "../ui/basics";
import { ConfirmDialog } from "../ui/dialog";
import { Icon } from "../ui/icons";

/** What waits because of it, in words. */
export function held({ held_jobs, held_gpus }: Breaker): string {
  if (held_jobs === 0) return "Nothing has waited for it so far.";
  return `${count(held_jobs)} ${held_jobs === 1 ? "job waits" : "jobs have waited"} for it, with ${count(held_gpus)} ${held_gpus === 1 ? "device" : "devices"} now.`;
}

export function Breakers({ breakers }: { breakers: Breaker[] }): ReactElement | null {
  if (breakers.length === 0) return null;
  return (
    <section className="notice tone-bad" aria-label="Breaker open">
      <Icon name="alert" />
      <div>{breakers.map((breaker) => <One key={breaker.id} breaker={breaker} />)}</div>
    </section>
  );
}

function One({ breaker }: { breaker: Breaker }): ReactElement {
  const [asked, setAsked] = useState(false);
  const refresh = useRefresh();
  const where = breaker.segment || "the fleet";
  return (
    <div>
      <b>The breaker of {where} is open: {breaker.reason}</b> <Time at={breaker.opened_at} />
      <p>
        Automation does nothing there that does not rest on positive proof; what people request is carried out. {held(breaker)}{" "}
        <Link to={paths.decision(breaker.decision_id)}>Evidence</Link>
      </p>
      <ActButton does="/breakers/{breaker_id}:close" of={breaker} project={null} onPress={() => setAsked(true)}>Close the breaker</ActButton>
      {asked ? (
        <ConfirmDialog
          title={`Close the breaker of ${where}`} confirmLabel="Close the breaker"
          onClose={() => { setAsked(false); refresh(queries.keys.overview); }}
          onConfirm={async (reason) => (await post("/breakers/{breaker_id}:close", { breaker_id: breaker.id }, { reason })).detail}
          blastRadius={<>Automation continues and counts from zero: replicas that are silent or late may be <b>ended and placed elsewhere</b>, and nodes taken out of service.</>}
        />
      ) : null}
    </div>
  );
}
