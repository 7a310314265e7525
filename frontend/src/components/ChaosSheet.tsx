/* Demo only: break something on purpose, at a chosen place, and follow what comes of it. */
import { useQuery } from "@tanstack/react-query";
import { type ReactElement, useState } from "react";
import { Link } from "react-router";
import { post } from "../api/client";
import { useProjectOf } from "../api/project";
import * as queries from "../api/queries";
import type { FaultKind, Target } from "../api/types";
import { paths } from "../lib/paths";
import { useLive } from "../live/hooks";
import { ActButton } from "../ui/ActButton";
import { Empty, Loaded, Problem } from "../ui/basics";
import { Dialog } from "../ui/dialog";
import { Icon } from "../ui/icons";
import { EMPTY_PICK, type Pick, ready, TargetPicker, toBody } from "./TargetPicker";

export function ChaosSheet({ onClose }: { onClose: () => void }): ReactElement {
  const faults = useQuery(queries.faults());
  const [pick, setPick] = useState<Pick>(EMPTY_PICK);
  const [kind, setKind] = useState<string | null>(null);
  return (
    <Dialog title="Inject a fault" onClose={onClose} sheet>
      <p className="muted">These are real faults on the demo fleet: processes are killed, links are cut. Training is expected to survive.</p>
      <Loaded query={faults}>
        {({ items }) => (items.length === 0 ? <Empty icon="bolt" title="No fault can be injected here" /> : (
          <ul className="faultlist">
            {items.map((fault) => (
              <li key={fault.kind}>
                <button type="button" className="fault-head" aria-expanded={kind === fault.kind} onClick={() => setKind(kind === fault.kind ? null : fault.kind)}>
                  <Icon name="chevron" size={12} /> <b>{fault.title}</b>
                </button>
                <p className="muted">{fault.description}</p>
                {kind === fault.kind ? <Inject fault={fault} pick={pick} onPick={setPick} onClose={onClose} /> : null}
              </li>
            ))}
          </ul>
        ))}
      </Loaded>
    </Dialog>
  );
}

function Inject(props: { fault: FaultKind; pick: Pick; onPick: (pick: Pick) => void; onClose: () => void }): ReactElement {
  const { fault, pick } = props;
  const [value, setValue] = useState(fault.value?.choices.length ? fault.value.default : "");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const [sent, setSent] = useState<{ detail: string; atMs: number } | null>(null);
  const needs: Target[] = fault.needs;
  /* A fault of a job is judged in its project, any other in the fleet. */
  const ofJob = needs.includes("job");
  const found = useProjectOf(ofJob && pick.job !== "" ? pick.job : null);
  const project = ofJob && pick.job === "" ? undefined : found;
  const inject = async (): Promise<void> => {
    setBusy(true);
    setError(null);
    try {
      const body = toBody(fault.kind, needs, pick, value);
      const accepted = await post("/demo/faults", {}, body);
      setSent({ detail: accepted.detail, atMs: Date.now() });
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  return (
    <div className="inject">
      <TargetPicker needs={needs} pick={pick} onPick={props.onPick} />
      {fault.value === null ? null : fault.value.choices.length > 0 ? (
        <label className="field"><span>{fault.value.label}</span><select value={value} onChange={(event) => setValue(event.target.value)}>{fault.value.choices.map((name) => <option key={name}>{name}</option>)}</select></label>
      ) : (
        <label className="field"><span>{fault.value.label}</span><input inputMode="decimal" placeholder={`${fault.value.default}, if left empty`} value={value} onChange={(event) => setValue(event.target.value)} /></label>
      )}
      {error ? <Problem error={error} /> : null}
      <ActButton does="/demo/faults" project={project} className="danger" busy={busy} why={ready(needs, pick) ? "" : "Choose where first."} onPress={() => void inject()}><Icon name="bolt" size={13} /> {busy ? "Injecting..." : `Inject: ${fault.title}`}</ActButton>
      {sent ? <Follow sent={sent} onClose={props.onClose} /> : null}
    </div>
  );
}

/** The incident that follows, as soon as its first event arrives. */
function Follow({ sent, onClose }: { sent: { detail: string; atMs: number }; onClose: () => void }): ReactElement {
  const incident = useLive((state) => state.data.feed.find((event) => event.entity === "incident" && Date.parse(event.at) >= sent.atMs - 2_000));
  return (
    <p role="status" className="answer">
      <Icon name="check" /> <span>{sent.detail} {incident ? <Link to={paths.incident(incident.entity_id ?? "")} onClick={onClose}>Follow the incident</Link> : <span className="muted">Waiting for the incident...</span>}</span>
    </p>
  );
}
