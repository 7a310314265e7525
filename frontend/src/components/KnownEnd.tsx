/* When a node is known to leave: what its head says of it, and the dialogs that set and cancel a window. */
import { type ReactElement, useState } from "react";
import { post } from "../api/client";
import type { NodeDetail } from "../api/types";
import { endText, inHours, instant } from "../lib/window";
import { ActButton } from "../ui/ActButton";
import { Time } from "../ui/basics";
import { ConfirmDialog } from "../ui/dialog";

/** The first end that is known; nothing where none is. */
export function KnownEndLine({ node, onCancel }: { node: NodeDetail; onCancel: () => void }): ReactElement | null {
  const end = node.known_end;
  if (!end) return null;
  return (
    <p className="why text-warn">
      {endText(end, new Date())} <Time at={end.leaves_at} />{end.back_at ? <>, back <Time at={end.back_at} /></> : null}: {end.reason} <span className="muted">({end.source === "spot" ? "its provider" : end.who})</span>.
      {" "}What runs here leaves before, in the cheapest way that fits.{" "}
      <ActButton does="/windows/{window_id}:cancel" project={null} className="small" onPress={onCancel}>{end.source === "spot" ? "It stays" : "Cancel the window"}</ActButton>
    </p>
  );
}

export function CancelWindowDialog({ node, onClose }: { node: NodeDetail; onClose: () => void }): ReactElement | null {
  const end = node.known_end;
  if (!end) return null;
  return (
    <ConfirmDialog
      title={`${node.name} stays`} confirmLabel="It stays" onClose={onClose}
      onConfirm={async (reason) => (await post("/windows/{window_id}:cancel", { window_id: end.id }, { reason })).detail}
      blastRadius={<>{node.name} takes work again, and what has not left it stays.{end.source === "spot" ? " Its provider has said that it leaves: say so only where you know that this is wrong." : ""}</>}
    />
  );
}

export function MaintainDialog({ node, onClose }: { node: NodeDetail; onClose: () => void }): ReactElement {
  const [start, setStart] = useState(inHours(new Date(), 1));
  const [end, setEnd] = useState(inHours(new Date(), 2));
  const send = async (reason: string): Promise<string> => {
    const times = { starts_at: instant(start), ends_at: instant(end) };
    return (await post("/nodes/{node_id}:maintain", { node_id: node.id }, { ...times, reason })).detail;
  };
  return (
    <ConfirmDialog
      title={`Maintenance of ${node.name}`} confirmLabel="Set the window" onClose={onClose} onConfirm={send}
      blastRadius={
        <>
          <p>The replicas of its <b>{node.ranks_running} ranks</b> leave before the window starts: relieved on other nodes where there is room, else left out, else their job saves and waits. Until then only what is expected to be over takes it; after the window it takes work again.</p>
          <label className="field"><span>Starts (local time)</span><input type="datetime-local" value={start} required onChange={(event) => setStart(event.target.value)} /></label>
          <label className="field"><span>Ends (local time)</span><input type="datetime-local" value={end} required onChange={(event) => setEnd(event.target.value)} /></label>
        </>
      }
    />
  );
}
