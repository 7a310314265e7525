/* Who changed the policy, when and why; any version comes back in one click, with a reason. */
import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { type ReactElement, useState } from "react";
import { post } from "../api/client";
import * as queries from "../api/queries";
import type { Policy } from "../api/types";
import type { PolicyOf } from "../lib/policy";
import { ActButton } from "../ui/ActButton";
import { Empty, Loaded, Panel, Time } from "../ui/basics";
import { ConfirmDialog } from "../ui/dialog";
import { More } from "../ui/More";
import { Scroll } from "../ui/Scroll";
import { Changes } from "./PolicyDryRun";

interface Props {
  policy: Policy;
  of: PolicyOf;
}

export function PolicyVersions({ policy, of }: Props): ReactElement {
  const query = useInfiniteQuery(queries.policyVersions(of));
  const [to, setTo] = useState<number | null>(null);
  const client = useQueryClient();
  const bringBack = async (reason: string): Promise<string> => {
    const made = await post("/policy:rollback", {}, { to: to!, parent: policy.number, reason, ...of });
    return `Version ${to} is in force again, as version ${made.number}.`;
  };
  const close = (): void => {
    setTo(null);
    void client.invalidateQueries({ queryKey: queries.keys.policy });
  };
  const back = (number: number): ReactElement => (
    <ActButton does="/policy:rollback" project={policy.project} onPress={() => setTo(number)}>Bring back</ActButton>
  );
  return (
    <Panel title="Versions" flush>
      <Loaded query={query}>
        {(data) => {
          const { rows, total } = queries.whole(data);
          if (rows.length === 0) return <Empty title="Nobody has changed this policy">Each change is kept here, with who made it and why.</Empty>;
          return (
            <>
              <Scroll label="Versions">
                <table>
                  <thead><tr><th className="num">Version</th><th>Reason</th><th>By</th><th>At</th><th /></tr></thead>
                  <tbody>
                    {rows.map((row) => (
                      <tr key={row.number}>
                        <td className="num">{row.number}</td>
                        <td className="words">{row.reason}{row.restores === null ? null : <div className="muted">brought back version {row.restores}</div>}</td>
                        <td>{row.who}</td>
                        <td><Time at={row.at} /></td>
                        <td>{row.number === policy.number ? <span className="muted">in force</span> : back(row.number)}</td>
                      </tr>
                    ))}
                    <tr><td className="num">0</td><td className="muted" colSpan={3}>{policy.job_id || policy.project ? "as what is above it" : "the defaults"}</td><td>{back(0)}</td></tr>
                  </tbody>
                </table>
              </Scroll>
              <More query={query} shown={rows.length} total={total} one="version" many="versions" />
            </>
          );
        }}
      </Loaded>
      {to !== null ? (
        <ConfirmDialog
          title={`Bring version ${to} back`} confirmLabel={`Bring version ${to} back`} danger onClose={close} onConfirm={bringBack}
          blastRadius={<Difference before={policy.number} after={to} of={of} />}
        />
      ) : null}
    </Panel>
  );
}

function Difference({ before, after, of }: { before: number; after: number; of: PolicyOf }): ReactElement {
  const query = useQuery(queries.policyDiff(before, after, of));
  return <Loaded query={query}>{(diff) => <>It is in force with each job's next pass, and changes:<Changes changes={diff.changes} /></>}</Loaded>;
}
