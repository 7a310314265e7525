/* The first rank that failed in an incident, across all ranks, and the end of what it wrote. */
import type { ReactElement } from "react";
import type { FirstFailure } from "../api/types";
import { count } from "../lib/format";
import { CopyButton, Panel, Time } from "../ui/basics";
import { LogText } from "../ui/LogText";

export function FirstFailureLog({ failure }: { failure: FirstFailure | null | undefined }): ReactElement | null {
  if (!failure) return null;
  const who = `rank ${failure.rank} of replica ${failure.replica}, incarnation ${failure.incarnation}`;
  const how = failure.exit_signal !== null ? `signal ${failure.exit_signal}` : failure.exit_code !== null ? `code ${failure.exit_code}` : "an end that was not observed";
  return (
    <Panel title="Log of the rank that failed first" id="first-failure" actions={failure.log === "" ? null : <CopyButton text={failure.log} what="log" label="Copy" />}>
      <p>
        {failure.error === "" ? "No error in its log" : <b>{failure.error}</b>} <span className="muted">({who} on {failure.node_name}, ended with {how}, <Time at={failure.at} />)</span>
      </p>
      {failure.root ? null : failure.error === "" ? null : <p className="muted">This error follows from another rank's end; what came first left no error of its own.</p>}
      {failure.failed > 1 ? <p className="muted">{count(failure.failed)} ranks ended by themselves; the errors of {count(failure.followed)} follow from another's end.</p> : null}
      {failure.truncated ? <p className="muted">Only the end is shown.</p> : null}
      {failure.log === "" ? <p className="muted">It left no output.</p> : <LogText text={failure.log} label="The end of its log" />}
    </Panel>
  );
}
