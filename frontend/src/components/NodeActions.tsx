/* The acts a person may order on a node, each with its blast radius in words before it is sent. */
import type { ReactElement } from "react";
import { post } from "../api/client";
import type { NodeDetail } from "../api/types";
import { ConfirmDialog } from "../ui/dialog";
import { CancelWindowDialog, MaintainDialog } from "./KnownEnd";

export type NodeAct = "cordon" | "uncordon" | "confirm" | "drain" | "maintain" | "cancel-window";

export function NodeActions({ act, node, onClose }: { act: NodeAct; node: NodeDetail; onClose: () => void }): ReactElement {
  if (act === "maintain") return <MaintainDialog node={node} onClose={onClose} />;
  if (act === "cancel-window") return <CancelWindowDialog node={node} onClose={onClose} />;
  if (act === "drain") return <DrainDialog node={node} onClose={onClose} />;
  return act === "confirm" ? <AdmitDialog node={node} onClose={onClose} /> : <CordonDialog node={node} cordoned={act === "uncordon"} onClose={onClose} />;
}

/** It is in doubt which machine it is, or it enrolled with a token that holds; an administrator alone says so. */
function AdmitDialog({ node, onClose }: { node: NodeDetail; onClose: () => void }): ReactElement {
  return (
    <ConfirmDialog
      title={`${node.held ? "Admit" : "Confirm"} ${node.name}`} confirmLabel={node.held ? "Admit" : "Confirm"} onClose={onClose}
      onConfirm={async (reason) => (await post("/nodes/{node_id}:confirm", { node_id: node.id }, { reason })).detail}
      blastRadius={<>What speaks as {node.name} now is the node: it may receive work, and its {node.devices.length} devices join the pool. Only an administrator can say so.</>}
    />
  );
}

function DrainDialog({ node, onClose }: { node: NodeDetail; onClose: () => void }): ReactElement {
  return (
    <ConfirmDialog
      title={`Drain ${node.name}`} confirmLabel="Drain" onClose={onClose}
      onConfirm={async (reason) => (await post("/nodes/{node_id}:drain", { node_id: node.id }, { reason })).detail}
      blastRadius={<>No new work is placed on {node.name}. The replicas of its <b>{node.ranks_running} ranks</b> move to other nodes one after another, of each job one at a time; then it is cordoned. A job that cannot spare a replica keeps it until it can; after 24 hours the drain ends and the node stays cordoned. Uncordon it to stop.</>}
    />
  );
}

function CordonDialog({ node, cordoned, onClose }: { node: NodeDetail; cordoned: boolean; onClose: () => void }): ReactElement {
  const verb = cordoned ? "uncordon" : "cordon";
  return (
    <ConfirmDialog
      title={`${cordoned ? "Uncordon" : "Cordon"} ${node.name}`} confirmLabel={cordoned ? "Uncordon" : "Cordon"} onClose={onClose}
      onConfirm={async (reason) => (await post(`/nodes/{node_id}:${verb}`, { node_id: node.id }, { reason })).detail}
      blastRadius={cordoned ? <>{node.name} may receive work again: {node.devices.length} devices return to the pool.</> : <>No new work is placed on {node.name} ({node.devices.length} devices). The <b>{node.ranks_running} ranks</b> running there continue; nothing is stopped.</>}
    />
  );
}
