/* API tokens: one's own, for administrators those of all accounts; each is revoked at once and for good. */
import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { type ReactElement, useState } from "react";
import { post } from "../api/client";
import * as queries from "../api/queries";
import type { Token } from "../api/types";
import { useNow } from "../lib/clock";
import { ActButton } from "../ui/ActButton";
import { Empty, Id, Loaded, Skeleton, Time } from "../ui/basics";
import { ConfirmDialog } from "../ui/dialog";
import { More, shownOf } from "../ui/More";
import { Scroll } from "../ui/Scroll";

export function TokenList({ admin }: { admin: boolean }): ReactElement {
  const [everybody, setEverybody] = useState(false);
  const [revokes, setRevokes] = useState<Token | null>(null);
  const client = useQueryClient();
  const query = useInfiniteQuery(queries.tokens(everybody));
  const { rows, total } = queries.whole(query.data);
  const close = (): void => {
    setRevokes(null);
    void client.invalidateQueries({ queryKey: queries.keys.tokens });
  };
  return (
    <div className="stack padded">
      <div className="toolbar">
        {admin ? (
          <div className="segments" role="group" aria-label="Whose tokens">
            <button type="button" aria-pressed={!everybody} onClick={() => setEverybody(false)}>Mine</button>
            <button type="button" aria-pressed={everybody} onClick={() => setEverybody(true)}>All accounts</button>
          </div>
        ) : null}
        <span className="muted" role="status">{query.data ? shownOf(rows.length, total, query.hasNextPage, "token", "tokens") : ""}</span>
      </div>
      <Loaded query={query} skeleton={<Skeleton height={160} />}>
        {() => rows.length === 0 ? (
          <Empty icon="key" title="No API tokens">Make one with <code>holdfast token create NAME</code>; it is shown once.</Empty>
        ) : (
          <>
            <Scroll label="API tokens">
              <table>
                <thead><tr><th>Name</th><th>Scope</th><th>Account</th><th>Made</th><th>Last used</th><th>Ends</th><th>State</th><th>Id</th><th /></tr></thead>
                <tbody>{rows.map((row) => <Row key={row.id} row={row} onRevoke={() => setRevokes(row)} />)}</tbody>
              </table>
            </Scroll>
            <More query={query} shown={rows.length} total={total} one="token" many="tokens" />
          </>
        )}
      </Loaded>
      {revokes ? (
        <ConfirmDialog
          title={`Revoke ${revokes.name}`} confirmLabel="Revoke" danger plain onClose={close}
          onConfirm={async () => (await post("/tokens/{token_id}:revoke", { token_id: revokes.id }, {})).detail}
          blastRadius={<>What uses the token <b>{revokes.name}</b> of {revokes.owner} is refused at once and for good, and so is every token that was made with it.</>}
        />
      ) : null}
    </div>
  );
}

function Row({ row, onRevoke }: { row: Token; onRevoke: () => void }): ReactElement {
  const now = useNow();
  const over = row.revoked_at !== null || (row.expires_at !== null && Date.parse(row.expires_at) <= now);
  return (
    <tr className={over ? "stale-row" : undefined}>
      <td><span className="cell-name">{row.name}</span>{row.parent ? <div className="muted">made by another token</div> : null}</td>
      <td>{row.scope}</td>
      <td>{row.owner}</td>
      <td><Time at={row.created_at} /></td>
      <td>{row.last_used_at ? <Time at={row.last_used_at} /> : <span className="missing">never</span>}</td>
      <td>{row.expires_at ? <Time at={row.expires_at} /> : "never"}</td>
      <td className="nowrap">{row.revoked_at ? <>revoked <Time at={row.revoked_at} /></> : over ? "ended" : "counts"}</td>
      <td><Id id={row.id} short={`...${row.id.slice(-6)}`} /></td>
      <td>{over ? null : <ActButton does="/tokens/{token_id}:revoke" project={null} className="danger small" label={`Revoke ${row.name}`} onPress={onRevoke}>Revoke</ActButton>}</td>
    </tr>
  );
}
