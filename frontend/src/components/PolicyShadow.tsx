/* A policy beside the live one: how far it agrees, what its way would have cost, and whether it may be promoted. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { type ReactElement, useState } from "react";
import { Link } from "react-router";
import { post } from "../api/client";
import * as queries from "../api/queries";
import type { Policy, Shadow } from "../api/types";
import { gpuSeconds } from "../lib/format";
import { paths } from "../lib/paths";
import { AGREEMENTS, mayBePromoted, priced, scored, standing } from "../lib/shadow";
import { ActButton } from "../ui/ActButton";
import { Empty, Loaded, Panel, Time } from "../ui/basics";
import { ConfirmDialog } from "../ui/dialog";
import { Scroll } from "../ui/Scroll";

interface Props {
  policy: Policy;
  text: string;
  changed: boolean;
}

/** Why nothing can be done with a document that is as it was. */
export const UNCHANGED = "Change the document first.";

type Act = "start" | "promote" | "stop";

export function PolicyShadow({ policy, text, changed }: Props): ReactElement {
  const query = useQuery(queries.policyShadow());
  const [act, setAct] = useState<Act | null>(null);
  const client = useQueryClient();
  const close = (): void => {
    setAct(null);
    void client.invalidateQueries({ queryKey: queries.keys.policy });
  };
  return (
    <Loaded query={query}>
      {({ shadow }) => {
        const runs = shadow?.state === "running";
        return (
          <Panel
            title="Shadow"
            actions={runs ? <>
              {shadow.role === "candidate" ? <ActButton does="/policy/shadow:promote" project={null} why={mayBePromoted(shadow) ? "" : shadow.below[0] ?? "It has not decided long enough."} onPress={() => setAct("promote")}>Promote</ActButton> : null}
              <ActButton does="/policy/shadow:stop" project={null} onPress={() => setAct("stop")}>Stop</ActButton>
            </> : <ActButton does="/policy/shadow:start" project={null} why={changed ? "" : UNCHANGED} onPress={() => setAct("start")}>Run beside the live policy</ActButton>}
          >
            {shadow ? <Standing shadow={shadow} /> : <Empty title="No policy has run beside the live one">A changed document can decide beside it, and acts on nothing.</Empty>}
            {act ? <Confirm act={act} shadow={shadow} policy={policy} text={text} onClose={close} /> : null}
          </Panel>
        );
      }}
    </Loaded>
  );
}

function Standing({ shadow }: { shadow: Shadow }): ReactElement {
  const runs = shadow.state === "running";
  return (
    <div className="stack">
      <p role="status" className="answer">{standing(shadow)} <Time at={shadow.started_at} /></p>
      {shadow.ended_why ? <p className="muted">{shadow.ended_why}</p> : null}
      <p>{priced(shadow)}</p>
      {shadow.score.incidents > 0 ? <p>{scored(shadow)}</p> : null}
      {runs && shadow.below.length > 0 ? <><p>It may not be promoted:</p><ul className="policy-changes">{shadow.below.map((reason) => <li key={reason}>{reason}</li>)}</ul></> : null}
      {shadow.matrix.length === 0 ? <p className="muted">Nothing was compared yet.</p> : <Matrix shadow={shadow} />}
      {shadow.newest.length > 0 ? <Differing shadow={shadow} /> : null}
    </div>
  );
}

function Matrix({ shadow }: { shadow: Shadow }): ReactElement {
  return (
    <Scroll label="Agreement by rule">
      <table>
        <thead><tr><th>Rule</th>{AGREEMENTS.map((each) => <th key={each.id} className="num" title={each.means}>{each.label}</th>)}</tr></thead>
        <tbody>
          {shadow.matrix.map((row) => <tr key={row.rule}><td><code>{row.rule}</code></td>{AGREEMENTS.map((each) => <td key={each.id} className="num">{row[each.id]}</td>)}</tr>)}
        </tbody>
      </table>
    </Scroll>
  );
}

function Differing({ shadow }: { shadow: Shadow }): ReactElement {
  return (
    <Scroll label="Decisions that differ">
      <table>
        <thead><tr><th>Decision</th><th>Live</th><th>Shadow</th><th>Change</th><th>At</th></tr></thead>
        <tbody>
          {shadow.newest.map((row, index) => (
            <tr key={`${row.decision_id} ${index}`}>
              <td><Link to={paths.decision(row.decision_id)}>{row.rule}</Link></td>
              <td>{row.live_choice.replaceAll("_", " ") || <span className="muted">nothing</span>}</td>
              <td>{row.other_choice.replaceAll("_", " ") || <span className="muted">nothing</span>}</td>
              <td className="words">{row.change_gpu_s === null ? <span className="muted">{row.why || "still to come"}</span> : `${row.change_gpu_s > 0 ? "+" : ""}${gpuSeconds(row.change_gpu_s)} (${row.priced_by})`}</td>
              <td><Time at={row.at} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Confirm({ act, shadow, policy, text, onClose }: { act: Act; shadow: Shadow | null; policy: Policy; text: string; onClose: () => void }): ReactElement {
  if (act === "start" || !shadow) {
    const start = async (reason: string): Promise<string> => {
      const made = await post("/policy/shadow:start", {}, { text, reason });
      return `Shadow ${made.run} decides beside the live policy.`;
    };
    return <ConfirmDialog title="Run it beside the live policy" confirmLabel="Run it beside" onClose={onClose} onConfirm={start} blastRadius="It decides each recorded decision as well, and acts on none." />;
  }
  const stop = async (reason: string): Promise<string> => {
    await post("/policy/shadow:stop", {}, { run: shadow.run, reason });
    return `Shadow ${shadow.run} is stopped.`;
  };
  if (act === "stop") return <ConfirmDialog title="Stop the shadow" confirmLabel="Stop it" onClose={onClose} onConfirm={stop} blastRadius="The live policy is as it was. What was compared stays to be read." />;
  const promote = async (reason: string): Promise<string> => {
    const watch = await post("/policy/shadow:promote", {}, { run: shadow.run, parent: policy.number, reason });
    return `Version ${watch.live_number} is in force; the one before it watches.`;
  };
  return <ConfirmDialog title="Promote the shadow" confirmLabel="Promote" danger onClose={onClose} onConfirm={promote} blastRadius={<>Every decision of <b>the whole fleet</b> is made by it from the next pass on. The policy before it watches, and comes back by itself where it would have wasted less.</>} />;
}
