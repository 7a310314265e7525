/* What this installation runs with: each value with its unit and where it comes from. Set where the server runs. */
import { useQuery } from "@tanstack/react-query";
import { type ReactElement, useState } from "react";
import * as queries from "../api/queries";
import type { Setting } from "../api/types";
import { duration } from "../lib/format";
import { Empty, Loaded, Skeleton } from "../ui/basics";
import { Scroll } from "../ui/Scroll";
import { SearchBox } from "../ui/SearchBox";

const GROUPS: { group: Setting["group"]; title: string }[] = [
  { group: "configuration", title: "Configuration" },
  { group: "access", title: "Sessions, tokens and rates" },
  { group: "versions", title: "Versions" },
];

export function SettingsList(): ReactElement {
  const query = useQuery(queries.settings());
  const [q, setQ] = useState("");
  const wanted = q.trim().toLowerCase();
  const shown = (query.data?.items ?? []).filter((row) => `${row.name} ${row.value} ${row.source}`.toLowerCase().includes(wanted));
  return (
    <div className="stack padded">
      <div className="toolbar">
        <SearchBox value={q} label="Search settings" placeholder="Part of a name or value" onChange={setQ} />
        <span className="muted">Values are set in the environment of the server, and take effect when it starts again. Secrets are never shown.</span>
      </div>
      <Loaded query={query} skeleton={<Skeleton height={240} />}>
        {() => shown.length === 0 ? <Empty icon="search" title="No setting is like that" /> : (
          <>{GROUPS.map(({ group, title }) => <Group key={group} title={title} rows={shown.filter((row) => row.group === group)} />)}</>
        )}
      </Loaded>
    </div>
  );
}

function Group({ title, rows }: { title: string; rows: Setting[] }): ReactElement | null {
  if (rows.length === 0) return null;
  return (
    <section>
      <h3>{title}</h3>
      <Scroll label={title}>
        <table>
          <thead><tr><th>Setting</th><th>Value</th><th>From</th></tr></thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.name}>
                <td className="words">{row.name.startsWith("HOLDFAST_") ? <code>{row.name}</code> : row.name}</td>
                <td className="words"><Value row={row} /></td>
                <td className="muted">{row.source.startsWith("environment") ? "environment" : row.source}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}

/** Long times also in days and hours. */
function Value({ row }: { row: Setting }): ReactElement {
  const s = row.unit === "s" ? Number(row.value) : NaN;
  if (row.value === "(not set)") return <span className="missing">not set</span>;
  return <>{row.value}{row.unit === "" ? "" : ` ${row.unit}`}{s >= 120 ? <span className="muted"> ({duration(s)})</span> : null}</>;
}
