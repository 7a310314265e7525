/* A decision that was only recommended: what it would touch, who has said what, and how long until it is carried out. */
import { type ReactElement, useState } from "react";
import { Link } from "react-router";
import { post } from "../api/client";
import * as queries from "../api/queries";
import { useProjectOf } from "../api/project";
import type { DecisionDetail } from "../api/types";
import { duration, gpuSeconds, words } from "../lib/format";
import { byServer, useNow } from "../lib/clock";
import { paths } from "../lib/paths";
import { useRefresh } from "../live/hooks";
import { ActButton, whyNot } from "../ui/ActButton";
import { Panel, Time } from "../ui/basics";
import { ConfirmDialog } from "../ui/dialog";

type Word = "approve" | "reject" | "hold";

const ASKS: Record<Word, { title: string; label: string; does: string }> = {
  approve: { title: "Approve this decision", label: "Approve", does: "It is carried out as soon as the policy has looked again and still recommends it." },
  reject: { title: "Reject this decision", label: "Reject", does: "It is not carried out. Everything stays as it is until something else is decided, or somebody approves this after all." },
  hold: { title: "Hold this decision", label: "Hold", does: "It is not carried out by itself any more: it waits until somebody approves or rejects it." },
};

export function Consent({ decision }: { decision: DecisionDetail }): ReactElement | null {
  const [asked, setAsked] = useState<Word | null>(null);
  const refresh = useRefresh();
  const project = useProjectOf(decision.mode === "recommend" ? decision.job_id : null);
  if (decision.mode !== "recommend") return null;
  return (
    <Panel title="Recommended, not carried out" id="consent">
      <Waits decision={decision} />
      <p>{decision.reach.length > 0 ? <>It would <b>{decision.reach.join("; ")}</b>.</> : "It would change nothing but its record."}{" "}<Costs decision={decision} /></p>
      {decision.verdicts.length > 0 ? (
        <ul>{decision.verdicts.map((word) => <li key={`${word.who} ${word.at}`}><b>{word.who}</b> {word.verdict} <Time at={word.at} />: {word.reason}</li>)}</ul>
      ) : null}
      <div className="page-actions consent-acts">
        <ActButton does="/decisions/{decision_id}:approve" of={decision} project={project} className="primary" onPress={() => setAsked("approve")}>Approve</ActButton>
        <ActButton does="/decisions/{decision_id}:reject" of={decision} project={project} onPress={() => setAsked("reject")}>Reject</ActButton>
        {decision.acts_at || decision.verdict === "held" ? <ActButton does="/decisions/{decision_id}:hold" of={decision} project={project} onPress={() => setAsked("hold")}>Hold</ActButton> : null}
      </div>
      {asked ? (
        <ConfirmDialog
          title={ASKS[asked].title} confirmLabel={ASKS[asked].label}
          onClose={() => { setAsked(null); refresh(queries.keys.decision(decision.id)); }}
          onConfirm={async (reason) => (await post(`/decisions/{decision_id}:${asked}`, { decision_id: decision.id }, { reason })).detail}
          blastRadius={<>{ASKS[asked].does}{asked === "approve" && decision.reach.length > 0 ? <> It will <b>{decision.reach.join("; ")}</b>.</> : null}</>}
        />
      ) : null}
    </Panel>
  );
}

function Waits({ decision }: { decision: DecisionDetail }): ReactElement {
  const now = useNow();
  const why = whyNot(decision, "approve");
  if (why) {
    const done = /dec_[0-9A-Z]+/.exec(why)?.[0];
    return <p className="muted">{done ? <>It was carried out: <Link to={paths.decision(done)}>see what became of it</Link>.</> : <>Nobody is asked any more: {why}.</>}</p>;
  }
  if (decision.acts_at) {
    const left = (Date.parse(decision.acts_at) - byServer(now)) / 1000;
    return <p role="timer">{left > 0 ? <>It is carried out <b>in {duration(Math.ceil(left))}</b> unless somebody holds or rejects it, if it is still recommended then.</> : "Its time is over: the next look of the policy carries it out, if it is still recommended."}</p>;
  }
  const standing = decision.verdict && decision.verdict !== "approved" ? ` It is ${decision.verdict}.` : "";
  if (decision.approvals_needed === 0) return <p>It is approved, and carried out as soon as the policy has looked again, if it is still recommended.</p>;
  const people = decision.approvals_needed === 1 ? (decision.verdict === "approved" ? "a second person" : "a person") : "two people, as it is expected to cost more than one may decide";
  return <p>It waits for the approval of <b>{people}</b>.{standing}</p>;
}

/** What acting and waiting are expected to cost, as far as that was priced. */
function Costs({ decision }: { decision: DecisionDetail }): ReactElement | null {
  const waiting = decision.alternatives.find((other) => other.action === "wait" && other.cost_gpu_s !== null);
  if (decision.cost_gpu_s === null) return null;
  return <span className="muted">{words(decision.choice)} is expected to cost {gpuSeconds(decision.cost_gpu_s)}{waiting ? `, to wait ${gpuSeconds(waiting.cost_gpu_s)}` : ""}.</span>;
}
