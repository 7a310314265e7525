/* The tail of one life of a rank's output: as it ended, or, while it lives, as last read. The earlier
   lives of the same slot are one press away. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type ReactElement, useState } from "react";
import { post } from "../api/client";
import * as queries from "../api/queries";
import type { Log, Rank } from "../api/types";
import { CopyButton, Empty, Loaded, Problem, Time } from "../ui/basics";
import { ActButton } from "../ui/ActButton";
import { Dialog } from "../ui/dialog";
import { LogText } from "../ui/LogText";

export function LogDialog({ jobId, project, rank, settled, onClose }: { jobId: string; project: string; rank: Rank; settled: boolean; onClose: () => void }): ReactElement {
  const [incarnation, setIncarnation] = useState(rank.incarnation);
  const slot = useQuery(queries.lives(jobId, rank.replica, settled));
  const lives = (slot.data?.items ?? []).flatMap((replica) => replica.ranks).filter((other) => other.rank === rank.rank);
  lives.sort((a, b) => b.incarnation - a.incarnation);
  const shown = lives.find((life) => life.incarnation === incarnation) ?? rank;
  return (
    <Dialog title={`Log: replica ${shown.replica}, incarnation ${shown.incarnation}, rank ${shown.rank}`} onClose={onClose}>
      {lives.length > 1 ? (
        <div className="segments" role="group" aria-label="Incarnation of this rank">
          {lives.map((life) => (
            <button key={life.id} type="button" aria-pressed={life.incarnation === shown.incarnation} onClick={() => setIncarnation(life.incarnation)}>
              incarnation {life.incarnation}{life.state === "exited" ? "" : " (runs)"}
            </button>
          ))}
        </div>
      ) : null}
      {slot.error && !slot.data ? <p className="text-bad" role="alert">Other incarnations of this rank could not be read.</p> : null}
      <IncarnationLog key={shown.id} jobId={jobId} project={project} rank={shown} />
    </Dialog>
  );
}

function IncarnationLog({ jobId, project, rank }: { jobId: string; project: string; rank: Rank }): ReactElement {
  const wanted = queries.logs(jobId, rank.replica, rank.rank, rank.incarnation);
  const client = useQueryClient();
  const query = useQuery(wanted);
  const read = useMutation({
    mutationFn: () => post("/jobs/{job_id}:debug", { job_id: jobId }, { replica: rank.replica, rank: rank.rank, diagnostic: "log", reason: "read on the page" }),
    onSuccess: () => client.invalidateQueries({ queryKey: wanted.queryKey }),
  });
  const lives = (query.data?.state ?? rank.state) !== "exited";
  return (
    <>
      {lives ? (
        <p>
          <ActButton does="/jobs/{job_id}:debug" of={rank} project={project} busy={read.isPending} onPress={() => read.mutate()}>Read it now</ActButton>{" "}
          <span className="muted">{read.isSuccess ? "Asked its agent; the answer appears here." : "This rank runs."}</span>
        </p>
      ) : null}
      {read.error ? <Problem error={read.error} /> : null}
      <Loaded query={query}>{(log) => <Text log={log} lives={lives} />}</Loaded>
    </>
  );
}

function Text({ log, lives }: { log: Log; lives: boolean }): ReactElement {
  if (log.source === "none")
    return <Empty icon="list" title="Nothing has been kept">{lives ? "Its output is kept when it ends; until then it can be read from its node." : "This incarnation of the rank left no output."}</Empty>;
  return (
    <>
      <p className="muted">
        {log.source === "live" ? <>As it ran at <Time at={log.at} />.</> : "As it ended."} {log.truncated ? "Only the end is shown." : null}
      </p>
      <LogText text={log.text} label="The end of the log" />
      <CopyButton text={log.text} what="log" label="Copy" />
    </>
  );
}
