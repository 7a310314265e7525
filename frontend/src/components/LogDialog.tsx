/* The tail of one rank's output. */
import { useQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import * as queries from "../api/queries";
import type { Rank } from "../api/types";
import { CopyButton, Empty, Loaded } from "../ui/basics";
import { Dialog } from "../ui/dialog";

export function LogDialog({ jobId, rank, onClose }: { jobId: string; rank: Rank; onClose: () => void }): ReactElement {
  const query = useQuery(queries.logs(jobId, rank.replica, rank.rank));
  return (
    <Dialog title={`Log: replica ${rank.replica}, rank ${rank.rank}`} onClose={onClose}>
      <Loaded query={query}>
        {(log) =>
          log.text === "" ? (
            <Empty icon="list" title="Nothing has been kept">The tail of a rank's output is kept when the rank ends.</Empty>
          ) : (
            <>
              {log.truncated ? <p className="muted">Only the end is shown.</p> : null}
              <pre className="code" tabIndex={0}>{log.text}</pre>
              <CopyButton text={log.text} what="log" label="Copy" />
            </>
          )
        }
      </Loaded>
    </Dialog>
  );
}
