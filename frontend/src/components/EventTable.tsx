/* What happened, newest first. */
import { type ReactElement, useState } from "react";
import type { EventItem } from "../api/types";
import { words } from "../lib/format";
import { useSetParam } from "../lib/params";
import { Empty, Time } from "../ui/basics";
import { Scroll } from "../ui/Scroll";

/** `freezes`: the page can be shown as of the time of each. */
export function EventTable({ events, freezes = false }: { events: EventItem[]; freezes?: boolean }): ReactElement {
  const set = useSetParam();
  const [text, setText] = useState("");
  const needle = text.trim().toLowerCase();
  const rows = [...events].sort((a, b) => b.seq - a.seq).filter((event) => needle === "" || `${event.kind} ${event.sentence}`.toLowerCase().includes(needle));
  if (events.length === 0) return <Empty icon="list" title="No events yet" />;
  return (
    <>
      <div className="toolbar padded"><input type="search" placeholder="Filter events" aria-label="Filter events" value={text} onChange={(event) => setText(event.target.value)} /></div>
      <Scroll label="Events" className="scroll-y">
        <table>
          <thead><tr><th>Time</th><th>Kind</th><th>What happened</th><th className="num">Seq</th></tr></thead>
          <tbody>
            {rows.map((event) => (
              <tr key={event.seq} id={`event-${event.seq}`}>
                <td>{freezes ? <button type="button" className="link" title="Show this page as of this time" onClick={() => set("at", event.at)}><Time at={event.at} /></button> : <Time at={event.at} />}</td>
                <td className="nowrap"><code>{event.kind}</code></td>
                <td className="words">{event.sentence || words(event.kind)}</td>
                <td className="num muted">{event.seq}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </>
  );
}
