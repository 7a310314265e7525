/* Events of a node's agent that the server could not apply: which, why, and what to do. For operators. */
import { useQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import * as queries from "../api/queries";
import type { DeadLetter, NodeDetail } from "../api/types";
import { bytes, count, shortId, words } from "../lib/format";
import { TO_READ } from "../lib/needs.gen";
import { whyMayNot } from "../lib/rights";
import { Id, Loaded, Panel, Skeleton, Time } from "../ui/basics";
import { Icon } from "../ui/icons";
import { Scroll } from "../ui/Scroll";

const LOOK = {
  waiting: { icon: "hourglass", tone: "warn" },
  replayed: { icon: "check", tone: "ok" },
  discarded: { icon: "cross", tone: "info" },
} as const;

export function DeadLetters({ node }: { node: NodeDetail }): ReactElement {
  /* As the frame of the page has read the account. */
  const me = useQuery({ ...queries.me(), enabled: false }).data;
  const why = whyMayNot(me, TO_READ["/nodes/{node_id}/dead-letters"], null);
  const query = useQuery({ ...queries.deadLetters(node.id), enabled: why === "" });
  const one = node.dead_letters === 1;
  return (
    <Panel title="Events put aside">
      <p>
        {count(node.dead_letters)} event{one ? "" : "s"} of this agent could not be applied. Nothing waits behind {one ? "it" : "them"}.
        Once the reason is mended, <code>manage.py replay_dead_letters --node {node.name}</code> applies {one ? "it" : "them in order"}.
      </p>
      {why !== "" ? <p className="muted">{why}</p> : (
        <Loaded query={query} skeleton={<Skeleton height={120} />}>
          {(page) => <Letters letters={page.items} />}
        </Loaded>
      )}
    </Panel>
  );
}

function Letters({ letters }: { letters: DeadLetter[] }): ReactElement {
  return (
    <Scroll label="Events put aside">
      <table>
        <thead><tr><th className="num">Number</th><th>Event</th><th>State</th><th>Reason</th><th className="num">Tries</th><th className="num">Size</th><th>Happened</th></tr></thead>
        <tbody>
          {letters.map((letter) => (
            <tr key={letter.id}>
              <td className="num">{letter.seq}</td>
              <td>{words(letter.kind)}<div className="muted"><Id id={letter.id} short={shortId(letter.id)} /></div></td>
              <td><span className={`badge badge-compact tone-${LOOK[letter.state].tone}`}><Icon name={LOOK[letter.state].icon} size={13} /> {letter.state}</span></td>
              <td>{letter.reason}</td>
              <td className="num">{letter.tries}</td>
              <td className="num">{bytes(letter.size_bytes)}</td>
              <td><Time at={letter.happened_at} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
