/* What a project pays for a month: each class of the ledger, charged or not; the bill of a closed month, and what was restated since. */
import { useQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import { useSearchParams } from "react-router";
import * as queries from "../api/queries";
import type { Bill } from "../api/types";
import { words } from "../lib/format";
import { amount, MONTH, thisMonth } from "../lib/bill";
import { gpuHours, MEANING, money } from "../lib/ledger";
import { Empty, Loaded, Panel, Time } from "../ui/basics";
import { Scroll } from "../ui/Scroll";

export function ProjectBill({ name }: { name: string }): ReactElement {
  const [params, setParams] = useSearchParams();
  const asked = params.get("month") ?? "";
  const month = MONTH.test(asked) ? asked : thisMonth(Date.now());
  const query = useQuery(queries.bill(name, month));
  const choose = (value: string): void => {
    const next = new URLSearchParams(params);
    if (MONTH.test(value)) next.set("month", value);
    else next.delete("month");
    setParams(next, { replace: true });
  };
  return (
    <Panel title="Bill" flush actions={<label className="muted">Month (UTC) <input type="month" value={month} max={thisMonth(Date.now())} onChange={(event) => choose(event.target.value)} /></label>}>
      <Loaded query={query}>{(bill) => <Lines bill={bill} />}</Loaded>
    </Panel>
  );
}

function Lines({ bill }: { bill: Bill }): ReactElement {
  if (bill.lines.length === 0) return <Empty icon="list" title="Its jobs held no device in this month" />;
  const [priced, width] = bill.price === null ? [false, 4] : [true, 5];
  return (
    <Scroll label="Bill">
      <table>
        <thead><tr><th>Class</th><th>Due to</th><th>Charged</th><th className="num">GPU time</th>{priced ? <th className="num">Money</th> : null}</tr></thead>
        <tbody>
          {bill.lines.map((line) => (
            <tr key={`${line.of} ${line.incident}`}>
              <td title={MEANING[line.of]}>{words(line.of)}</td>
              <td>{line.incident ? "an incident" : "the job"}</td>
              <td>{line.charged ? "yes" : <span className="muted">no</span>}</td>
              <td className="num">{gpuHours(line.gpu_s)}</td>
              {priced ? <td className="num">{money(line.money, bill.currency)}</td> : null}
            </tr>
          ))}
          <tr><td colSpan={3}><b>Charged</b></td><td className="num"><b>{gpuHours(bill.charged_gpu_s)}</b></td>{priced ? <td className="num"><b>{money(bill.charged_money, bill.currency)}</b></td> : null}</tr>
          {bill.restated ? <tr><td colSpan={width}>Restated since it was closed: {amount(bill.restated.gpu_s, bill.restated.money, bill.currency)}.</td></tr> : null}
          <tr><td className="muted" colSpan={width}>{bill.closed_at ? <>Closed <Time at={bill.closed_at} />; it does not change any more.</> : bill.state === "closed" ? "Closed." : "Open: it is closed some days after its month."}</td></tr>
        </tbody>
      </table>
    </Scroll>
  );
}
