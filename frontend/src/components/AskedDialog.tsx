/* An act that was chosen away from its object's page: the object is read now, and the dialog is the one of its page. */
import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { type ReactElement, useEffect, useState } from "react";
import * as queries from "../api/queries";
import type { IncidentDetail, JobDetail, NodeDetail } from "../api/types";
import type { Asked } from "../lib/palette";
import { useRefresh } from "../live/hooks";
import { whyNot } from "../ui/ActButton";
import { Problem, Skeleton } from "../ui/basics";
import { Dialog } from "../ui/dialog";
import { AcknowledgeDialog } from "./AcknowledgeDialog";
import { JobActions, type JobAct } from "./JobActions";
import { type NodeAct, NodeActions } from "./NodeActions";

type Target = { kind: "job"; row: JobDetail } | { kind: "node"; row: NodeDetail } | { kind: "incident"; row: IncidentDetail };

/** As it is now: what a list said of it may be seconds old. */
async function target(client: QueryClient, { kind, id }: Asked): Promise<Target> {
  if (kind === "job") return { kind, row: await client.fetchQuery({ ...queries.job(id), staleTime: 0 }) };
  if (kind === "node") return { kind, row: await client.fetchQuery({ ...queries.node(id), staleTime: 0 }) };
  return { kind, row: await client.fetchQuery({ ...queries.incident(id), staleTime: 0 }) };
}

export function AskedDialog({ asked, onClose }: { asked: Asked; onClose: () => void }): ReactElement {
  const client = useQueryClient();
  const refresh = useRefresh();
  /* Read once: the order itself changes the object, and its dialog then shows the answer. */
  const [read, setRead] = useState<Target | null>(null);
  const [error, setError] = useState<unknown>(null);
  useEffect(() => {
    let gone = false;
    target(client, asked).then((found) => (gone ? undefined : setRead(found)), (caught: unknown) => (gone ? undefined : setError(caught)));
    return () => {
      gone = true;
    };
  }, [client, asked]);
  const close = (): void => {
    onClose();
    const { keys } = queries;
    refresh(keys.found);
    if (asked.kind === "job") [keys.job(asked.id), keys.jobs].forEach(refresh);
    else if (asked.kind === "node") [keys.node(asked.id), keys.nodes].forEach(refresh);
    else [keys.incident(asked.id), keys.incidents, keys.overview].forEach(refresh);
  };
  const why = read ? whyNot(read.row, asked.act) : "";
  if (read && why === "") return <Order target={read} act={asked.act} onClose={close} />;
  return (
    <Dialog title={asked.name} onClose={onClose}>
      {error ? <Problem error={error} /> : read ? <p role="alert">This cannot be done now: {why}</p> : <Skeleton lines={3} />}
    </Dialog>
  );
}

function Order({ target: of, act, onClose }: { target: Target; act: string; onClose: () => void }): ReactElement {
  if (of.kind === "job") return <JobActions job={of.row} act={{ kind: act } as JobAct} onClose={onClose} />;
  if (of.kind === "node") return <NodeActions node={of.row} act={act as NodeAct} onClose={onClose} />;
  return <AcknowledgeDialog incident={of.row} onClose={onClose} />;
}
