/* What each source says of an XID, side by side: NVIDIA, gpud, AWS and this site; what holds now, and where they disagree. The rows
   are the server's, from the table by which it decides. */
import { useQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import { useSearchParams } from "react-router";
import * as queries from "../api/queries";
import type { XidRule } from "../api/types";
import { count } from "../lib/format";
import { useSetParam } from "../lib/params";
import { XID_VIEWS, xidsShown, xidView } from "../lib/xids";
import { Empty, Loaded, Panel, Skeleton } from "../ui/basics";
import { Icon } from "../ui/icons";
import { Scroll } from "../ui/Scroll";
import { SearchBox } from "../ui/SearchBox";
import { Segments } from "../ui/Segments";

export function XidTable(): ReactElement {
  const query = useQuery(queries.policyXids());
  const [params] = useSearchParams();
  const set = useSetParam();
  const [view, q] = [xidView(params.get("xids")), params.get("xid") ?? ""];
  return (
    <Panel title="XIDs: who says what" id="xids" flush>
      <div className="toolbar padded">
        <Segments label="Which XIDs" options={XID_VIEWS} value={view} onChange={(next) => set("xids", next === XID_VIEWS[0] ? "" : next)} />
        <SearchBox value={q} label="Search XIDs" placeholder="Number or words" onChange={(value) => set("xid", value)} />
        <span className="muted" role="status">{query.data ? `${count(xidsShown(query.data.items, view, q).length)} of ${count(query.data.items.length)}` : ""}</span>
      </div>
      <Loaded query={query} skeleton={<div className="padded"><Skeleton height={240} /></div>}>
        {({ items, sources }) => (
          <>
            <Rows rows={xidsShown(items, view, q)} />
            <ul className="padded muted rows">{Object.entries(sources).map(([name, source]) => <li key={name}><b>{name}</b>: {source}</li>)}</ul>
          </>
        )}
      </Loaded>
    </Panel>
  );
}

function Rows({ rows }: { rows: XidRule[] }): ReactElement {
  if (rows.length === 0) return <Empty icon="search" title="No XID is like that">The actions that this site sets are in the document above.</Empty>;
  return (
    <Scroll label="XIDs and their sources">
      <table>
        <thead><tr><th className="num">XID</th><th>What it is</th><th>NVIDIA</th><th>gpud</th><th>AWS</th><th>This site</th><th>Holds now</th><th>Disagreement</th></tr></thead>
        <tbody>{rows.map((row) => <Row key={row.xid} row={row} />)}</tbody>
      </table>
    </Scroll>
  );
}

/** A word of a source; where it has none, that is said. */
function Word({ text }: { text: string }): ReactElement {
  return text === "" ? <span className="muted" title="It says nothing of this XID">-</span> : <>{text.replaceAll("|", ", ")}</>;
}

function Row({ row }: { row: XidRule }): ReactElement {
  return (
    <tr>
      <td className="num"><b>{row.xid}</b></td>
      <td className="words">{row.what}{row.mnemonic ? <div className="muted"><code>{row.mnemonic}</code></div> : null}</td>
      <td><Word text={row.nvidia} /></td>
      <td className="words"><Word text={row.gpud} /></td>
      <td><Word text={row.aws} />{row.aws_note ? <div className="muted">{row.aws_note}</div> : null}</td>
      <td>{row.site === "" ? <span className="muted" title="The site's policy does not name it">-</span> : <b>{row.site}</b>}</td>
      <td><b>{row.action}</b><div className="muted">{row.site === "" ? row.because : `the site's word; else ${row.standard}`}</div></td>
      <td className="words">{row.disagreements.length === 0 ? <span className="muted">none</span> : row.disagreements.map((text) => <div key={text} className="text-warn"><Icon name="alert" size={13} /> {text.replaceAll("|", ", ")}</div>)}</td>
    </tr>
  );
}
