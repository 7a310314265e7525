/* The ledger's picture and its twins as tables. */
import type { ReactElement } from "react";
import { Link } from "react-router";
import type { Ledger, LedgerRow } from "../api/types";
import { percent, words } from "../lib/format";
import { barParts, gpuHours, lost, MEANING, money, rowPath } from "../lib/ledger";
import { Scroll } from "../ui/Scroll";

/** All of it as one bar; the table beside it says the same. */
export function LedgerBar({ classes, label, small }: { classes: Partial<Record<string, number>>; label: string; small?: boolean }): ReactElement {
  const parts = barParts(classes);
  const text = parts.map((part) => `${words(part.of)} ${percent(part.share, 1)}`).join(", ");
  return (
    <div className={`ledger-bar${small ? " ledger-small" : ""}`} role="img" aria-label={`${label}: ${text || "nothing"}`}>
      {parts.map((part) => (
        <span key={part.of} className={`time-${part.of}`} style={{ flexGrow: part.share }} title={`${words(part.of)}: ${gpuHours(part.gpuS)}, ${percent(part.share, 1)}`} />
      ))}
    </div>
  );
}

export function ClassTable({ ledger }: { ledger: Ledger }): ReactElement {
  const shown = ledger.classes.filter((each) => Math.abs(each.gpu_s) >= 0.5);
  return (
    <Scroll label="Time by class">
      <table>
        <thead>
          <tr><th>Class</th><th className="num">Time</th><th className="num">Share</th>{ledger.price === null ? null : <th className="num">Money</th>}<th>What it is</th></tr>
        </thead>
        <tbody>
          {shown.map((each) => (
            <tr key={each.of}>
              <td className="nowrap"><i className={`swatch ledger-swatch time-${each.of}`} aria-hidden /> {words(each.of)}</td>
              <td className="num nowrap">{gpuHours(each.gpu_s)}</td>
              <td className="num nowrap">{percent(each.share, 1)}</td>
              {ledger.price === null ? null : <td className="num nowrap">{money(each.money, ledger.currency)}</td>}
              <td className="words muted">{MEANING[each.of] ?? "a class that this page does not know"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

export function RowTable({ ledger, what }: { ledger: Ledger; what: string }): ReactElement {
  const ofJobs = ledger.by === "job";
  return (
    <Scroll label={`Time by ${what}`}>
      <table>
        <thead>
          <tr>
            <th>{what}</th>
            <th className="ledger-col">What it was</th>
            <th className="num">Time</th>
            <th className="num">Share</th>
            <th className="num">Lost</th>
            {ofJobs ? <><th className="num">ETTR</th><th className="num">Queued beside it</th></> : null}
            {ledger.price === null ? null : <th className="num">Money</th>}
          </tr>
        </thead>
        <tbody>
          {ledger.rows.map((row) => (
            <tr key={`${row.kind}/${row.id}`}>
              <td className="words"><Name row={row} by={ledger.by} /></td>
              <td className="ledger-col"><LedgerBar classes={row.classes} label={row.label} small /></td>
              <td className="num nowrap">{gpuHours(row.gpu_s)}</td>
              <td className="num nowrap">{percent(row.share, 1)}</td>
              <td className="num nowrap">{gpuHours(lost(row.classes))}</td>
              {ofJobs ? <><td className="num nowrap">{row.ettr === null ? <span className="muted">-</span> : percent(row.ettr, 1)}</td><td className="num nowrap">{row.queued_gpu_s ? gpuHours(row.queued_gpu_s) : <span className="muted">-</span>}</td></> : null}
              {ledger.price === null ? null : <td className="num nowrap">{money(row.money, ledger.currency)}</td>}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Name({ row, by }: { row: LedgerRow; by: string }): ReactElement {
  const to = rowPath(row, by);
  const text = row.label || row.id;
  return (
    <>
      {to === null ? <span>{text}</span> : <Link to={to}>{text}</Link>}
      {by === "cause" && row.kind ? <div className="muted">{row.kind}</div> : null}
    </>
  );
}
