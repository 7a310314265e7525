/* The fleet's devices by what they are in use for, who yields to whom, and which jobs end when. */
import type { ReactElement } from "react";
import type { Capacity, CapacityCounts } from "../api/types";
import { capacityRows, leftOut, USES } from "../lib/capacity";
import { count, gpuSeconds, percent } from "../lib/format";
import { Empty, Figure, Time } from "../ui/basics";
import { Scroll } from "../ui/Scroll";
import { JobName } from "./JobName";

export function CapacityFigures({ capacity }: { capacity: Capacity }): ReactElement {
  const { counts } = capacity;
  return (
    <dl className="figures">
      <Figure label="Devices" value={count(counts.devices)} note={capacity.types.length === 0 ? undefined : capacity.types.length === 1 ? capacity.types[0]!.gpu_type : `${count(capacity.types.length + capacity.types_left_out)} types`} />
      {USES.map((use) => (
        <Figure
          key={use.name}
          label={use.text}
          value={count(counts[use.name])}
          title={use.meaning}
          tone={use.name === "down" && counts.down > 0 ? "bad" : undefined}
          note={use.name === "in_use" && counts.leaving > 0 ? `${count(counts.leaving)} on nodes that take no new work` : undefined}
        />
      ))}
    </dl>
  );
}

export function CapacityTable({ capacity }: { capacity: Capacity }): ReactElement {
  if (capacity.types.length === 0) return <Empty icon="server" title="No devices yet">They appear when an agent starts on a GPU node.</Empty>;
  const more = leftOut(capacity);
  return (
    <>
      <Scroll label="Devices by type and segment">
        <table>
          <thead>
            <tr>
              <th>Type</th><th>Segment</th><th className="capacity-col">In use for</th><th className="num">Devices</th>
              {USES.map((use) => <th key={use.name} className="num" title={use.meaning}><i className={`swatch ledger-swatch use-${use.name}`} aria-hidden /> {use.text}</th>)}
            </tr>
          </thead>
          <tbody>
            {capacityRows(capacity).map((row) => (
              <tr key={row.key}>
                <td className="nowrap">{row.type}</td>
                <td className="nowrap">{row.segment === null ? <span className="muted">all</span> : row.segment || <span className="missing">none named</span>}</td>
                <td className="capacity-col"><UseBar counts={row.counts} label={`${row.type} ${row.segment ?? ""}`} /></td>
                <td className="num">{count(row.counts.devices)}</td>
                {USES.map((use) => <td key={use.name} className={`num${row.counts[use.name] === 0 ? " muted" : ""}`}>{count(row.counts[use.name])}</td>)}
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {more + capacity.types_left_out > 0 ? <p className="padded muted">{count(more)} segments and {count(capacity.types_left_out)} types more are in the sums.</p> : null}
    </>
  );
}

/** For whom, and until when, what is free is reserved. */
export function ReservedFree({ capacity }: { capacity: Capacity }): ReactElement | null {
  const more = capacity.reserved_count - capacity.reserved.length;
  if (capacity.reserved.length === 0) return null;
  return (
    <p className="padded muted">
      Reserved: {capacity.reserved.map((each, index) => <span key={each.id}>{index > 0 ? "; " : ""}{count(each.devices)} free for {each.project} until <Time at={each.ends_at} /></span>)}{more > 0 ? ` and ${count(more)} more` : ""}.
    </p>
  );
}

/** The table's row as one bar. */
function UseBar({ counts, label }: { counts: CapacityCounts; label: string }): ReactElement {
  const parts = USES.filter((use) => counts[use.name] > 0);
  return (
    <div className="ledger-bar ledger-small" role="img" aria-label={`${label}: ${parts.map((use) => `${use.text} ${counts[use.name]}`).join(", ")}`}>
      {parts.map((use) => <span key={use.name} className={`use-${use.name}`} style={{ flexGrow: counts[use.name] }} title={`${use.text}: ${count(counts[use.name])} (${percent(counts[use.name] / counts.devices)})`} />)}
    </div>
  );
}

export function Yields({ capacity }: { capacity: Capacity }): ReactElement {
  if (capacity.yields.length === 0) return <Empty title="Nobody yields devices now">A running job of lower priority saves and yields where an urgent one lacks room.</Empty>;
  const more = capacity.yields_count - capacity.yields.length;
  return (
    <>
      <Scroll label="Who yields to whom">
        <table>
          <thead><tr><th>Yields</th><th className="num">Devices</th><th>To</th><th className="num">Expected loss</th></tr></thead>
          <tbody>
            {capacity.yields.map((job, index) => (
              <tr key={`${job.id} ${index}`}>
                <td className="words beside"><JobName job={job} /> <span className="muted">priority {job.priority}{job.trains_on ? "; it trains on without these" : ""}</span></td>
                <td className="num">{count(job.devices)}</td>
                <td className="words beside">{job.to ? <><JobName job={job.to} /> <span className="muted">priority {job.to.priority}</span></> : "a person asked"}</td>
                <td className="num nowrap">{job.lost_gpu_s === null ? <span className="missing">not known</span> : gpuSeconds(job.lost_gpu_s)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {more > 0 ? <p className="padded muted">{count(more)} more yield their devices.</p> : null}
    </>
  );
}

export function Ends({ capacity }: { capacity: Capacity }): ReactElement {
  const more = capacity.ends_count - capacity.ends.length;
  const unknown = capacity.ends_unknown > 0 ? <p className="padded muted">Of {count(capacity.ends_unknown)} {capacity.ends_unknown === 1 ? "job" : "jobs"} with devices nobody knows when they end: none of their steps has been timed yet.</p> : null;
  if (capacity.ends.length === 0) return unknown ?? <Empty title="No job has devices now" />;
  return (
    <>
      <Scroll label="Which jobs are expected to end when">
        <table>
          <thead><tr><th>Job</th><th className="num">Devices</th><th>Expected to end</th></tr></thead>
          <tbody>
            {capacity.ends.map((job, index) => (
              <tr key={`${job.id} ${index}`}>
                <td className="words beside"><JobName job={job} /> <span className="muted">priority {job.priority}</span></td>
                <td className="num">{count(job.devices)}</td>
                <td className="nowrap">{job.leaves ? "it leaves now" : <Time at={job.expected_end_at} />}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {more > 0 ? <p className="padded muted">{count(more)} more are expected to end later.</p> : null}
      {unknown}
    </>
  );
}
