/* Orders to agents: committed, delivered, journaled, done; each wait as a piece of one bar. */
import type { ReactElement } from "react";
import { Link } from "react-router";
import type { Command } from "../api/types";
import { duration, words } from "../lib/format";
import { paths } from "../lib/paths";
import { Empty, Time } from "../ui/basics";
import { StateBadge } from "../ui/states";
import { Scroll } from "../ui/Scroll";

const seconds = (from: string | null, to: string | null): number | null => (from && to ? (Date.parse(to) - Date.parse(from)) / 1000 : null);
/** Nothing more becomes of a command in these. */
const OVER = new Set(["succeeded", "failed", "expired", "superseded"]);
/** It was carried out, well or not: of the others that ended nothing was done. */
const DONE = new Set(["succeeded", "failed"]);

function detailText(detail: unknown): string {
  if (typeof detail === "string") return detail;
  return detail && typeof detail === "object" && Object.keys(detail).length > 0 ? JSON.stringify(detail) : "";
}

export function CommandTimeline({ commands }: { commands: Command[] }): ReactElement {
  if (commands.length === 0) return <Empty icon="send" title="No command was needed" />;
  const rows = [...commands].sort((a, b) => a.created_at.localeCompare(b.created_at));
  return (
    <Scroll label="Commands">
      <table>
        <thead><tr><th>Command</th><th>Node</th><th>State</th><th>Committed</th><th className="num">Delivered</th><th className="num">Acknowledged</th><th className="num">Done</th><th className="num">Sent</th><th className="num">Epoch</th></tr></thead>
        <tbody>
          {rows.map((command) => (
            <tr key={command.id}>
              <td><b>{words(command.kind)}</b>{detailText(command.detail) ? <div className="muted">{detailText(command.detail)}</div> : null}</td>
              <td><Link to={paths.node(command.node_id)}>{command.node_name}</Link></td>
              <td><StateBadge kind="command" state={command.state} compact /></td>
              <td><Time at={command.created_at} /></td>
              <Wait value={seconds(command.created_at, command.delivered_at)} over={OVER.has(command.state)} />
              <Wait value={seconds(command.created_at, command.acknowledged_at)} over={OVER.has(command.state)} />
              <Wait value={DONE.has(command.state) ? seconds(command.created_at, command.finished_at) : null} over={OVER.has(command.state)} />
              <td className="num">{command.deliveries}x</td>
              <td className="num">{command.epoch}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Wait({ value, over }: { value: number | null; over: boolean }): ReactElement {
  return <td className="num">{value === null ? <span className="muted">{over ? "never" : "not yet"}</span> : `${value < 0 ? "" : "+"}${duration(value)}`}</td>;
}
