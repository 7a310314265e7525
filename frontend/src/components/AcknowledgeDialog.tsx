/* Somebody has seen an incident, and takes on what is left of it. */
import type { ReactElement } from "react";
import { post } from "../api/client";
import type { Incident } from "../api/types";
import { ConfirmDialog } from "../ui/dialog";

export function AcknowledgeDialog({ incident, onClose }: { incident: Incident; onClose: () => void }): ReactElement {
  const hardware = incident.state === "mitigated";
  return (
    <ConfirmDialog
      title="Acknowledge this incident" confirmLabel="Acknowledge" onClose={onClose}
      onConfirm={async (reason) => (await post("/incidents/{incident_id}:acknowledge", { incident_id: incident.id }, { reason })).detail}
      blastRadius={hardware ? <>The hardware is <b>yours from now on</b> and the incident is over. The node takes no work until somebody returns it.</> : <>This records that <b>you have seen it</b>; nothing is stopped or started.</>}
    />
  );
}
