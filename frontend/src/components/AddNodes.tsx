/* Adding nodes: a join token for those that may enrol, the commands that enrol them, and the nodes as they come. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { type ReactElement, useState } from "react";
import { Link } from "react-router";
import { get, post } from "../api/client";
import * as queries from "../api/queries";
import { type Bound, BOUNDS, enrolCommands, VALID_S } from "../lib/enrol";
import { paths } from "../lib/paths";
import { useSubmitting } from "../lib/submitting";
import { ActButton } from "../ui/ActButton";
import { CopyButton, Problem, Time } from "../ui/basics";
import { Dialog } from "../ui/dialog";
import { Icon } from "../ui/icons";

export function AddNodes(): ReactElement {
  const [open, setOpen] = useState(false);
  return (
    <>
      <ActButton does="/join-tokens" project={null} className="primary" onPress={() => setOpen(true)}>Add nodes</ActButton>
      {open ? <AddDialog onClose={() => setOpen(false)} /> : null}
    </>
  );
}

interface Made {
  token: string;
  segment: string;
  name: string;
  expiresAt: string;
  afterSeq: number;
}

function AddDialog({ onClose }: { onClose: () => void }): ReactElement {
  const [made, setMade] = useState<Made | null>(null);
  return (
    <Dialog title="Add nodes" onClose={onClose}>
      {made === null ? <Ask onMade={setMade} onClose={onClose} /> : <Commands made={made} onClose={onClose} />}
    </Dialog>
  );
}

function Ask({ onMade, onClose }: { onMade: (made: Made) => void; onClose: () => void }): ReactElement {
  const [bound, setBound] = useState<Bound>("pool");
  const [words, setWords] = useState("");
  const [uses, setUses] = useState("1");
  const [validS, setValidS] = useState(3600);
  const [hold, setHold] = useState(false);
  const { busy, error, send } = useSubmitting();
  const client = useQueryClient();
  const chosen = BOUNDS.find((each) => each.of === bound)!;
  const make = async (): Promise<void> => {
    const { as_of_seq: afterSeq } = await get("/events", {}, { newest: true, limit: 1 });
    const row = await post("/join-tokens", {}, { [bound]: words.trim(), uses: Number(uses), ttl_s: validS, hold });
    void client.invalidateQueries({ queryKey: queries.keys.joinTokens });
    onMade({ token: row.token ?? "", segment: row.pool, name: row.name, expiresAt: row.expires_at, afterSeq });
  };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        void send(make);
      }}
    >
      <label className="field">
        <span>Which nodes may enrol</span>
        <select value={bound} onChange={(event) => setBound(event.target.value as Bound)}>
          {BOUNDS.map((each) => <option key={each.of} value={each.of}>{each.text}</option>)}
        </select>
      </label>
      <label className="field">
        <span>{chosen.label}</span>
        <input value={words} placeholder={chosen.placeholder} required maxLength={chosen.most} spellCheck={false} autoComplete="off" data-autofocus onChange={(event) => setWords(event.target.value)} />
      </label>
      <label className="field">
        <span>How many nodes</span>
        <input type="number" min={1} max={10_000} required value={uses} onChange={(event) => setUses(event.target.value)} />
      </label>
      <label className="field">
        <span>Valid for</span>
        <select value={validS} onChange={(event) => setValidS(Number(event.target.value))}>
          {VALID_S.map(({ s, text }) => <option key={s} value={s}>{text}</option>)}
        </select>
      </label>
      <label className="check"><input type="checkbox" checked={hold} onChange={(event) => setHold(event.target.checked)} /> They get no work until an administrator admits them</label>
      {error ? <Problem error={error} /> : null}
      <div className="dialog-actions">
        <button type="button" className="button" onClick={onClose}>Cancel</button>
        <button type="submit" className="button primary" disabled={busy}>{busy ? "Sending..." : "Make a join token"}</button>
      </div>
    </form>
  );
}

function Commands({ made, onClose }: { made: Made; onClose: () => void }): ReactElement {
  const text = enrolCommands(location.origin, made);
  const nodes = useQuery(queries.enrolled(made.afterSeq)).data ?? [];
  return (
    <div className="stack">
      <p>On each node, where Holdfast is installed. The join token in it is shown this once and is valid until <Time at={made.expiresAt} />.</p>
      <pre className="code" tabIndex={0} aria-label="Commands for the node">{text}</pre>
      <div className="toolbar"><CopyButton text={text} what="commands" label="Copy" /></div>
      <p className="muted">With the unit <code>holdfast-agent</code> write the token to <code>/etc/holdfast/join-token</code> instead, and start the unit.</p>
      <div role="status">
        {nodes.length === 0 ? <p className="muted">Waiting for the first node.</p> : (
          <ul className="rows">
            {nodes.map((event) => <li key={event.seq}><Icon name="check" size={13} /> {event.node_id ? <Link to={paths.node(event.node_id)}>{event.sentence}</Link> : event.sentence} <Time at={event.at} /></li>)}
          </ul>
        )}
      </div>
      <div className="dialog-actions"><button type="button" className="button primary" onClick={onClose}>Close</button></div>
    </div>
  );
}
