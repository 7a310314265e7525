/* What follows an XID: those that this document decides otherwise than the catalogue does, each with a way back. */
import type { ReactElement } from "react";
import { type Draft, withRow, xidRows } from "../lib/policy";
import { XID_ACTIONS, XIDS } from "../lib/xids.gen";
import { Scroll } from "../ui/Scroll";

const TABLE = "xid_overrides";

export function XidActions({ draft, set }: { draft: Draft; set: (next: Draft) => void }): ReactElement {
  const rows = xidRows(draft, XIDS);
  const chosen = new Set(rows.map((row) => row.xid));
  const write = (xid: string, action: string): void => set(withRow(draft, TABLE, xid, action));
  return (
    <details className="fold" open={rows.length > 0}>
      <summary>Actions for XIDs</summary>
      <p className="muted">An XID is an error that the GPU driver reports. The catalogue has an action for each, and takes it for worse when it comes again within a day; an action that is set here counts however often it comes.</p>
      {rows.length === 0 ? null : (
        <Scroll label="Actions for XIDs">
          <table>
            <thead><tr><th className="num">XID</th><th>What it is</th><th>Action</th></tr></thead>
            <tbody>
              {rows.map(({ xid, what, standard, action }) => (
                <tr key={xid}>
                  <td className="num">{xid}</td>
                  <td className="words">{what}{standard === "" ? null : <div className="muted">default: {standard}</div>}</td>
                  <td>
                    <select aria-label={`Action for XID ${xid}`} value={action} onChange={(event) => write(xid, event.target.value)}>
                      {(XID_ACTIONS as readonly string[]).includes(action) ? null : <option value={action}>{action}</option>}
                      {XID_ACTIONS.map((word) => <option key={word} value={word}>{word}</option>)}
                    </select>{" "}
                    <button type="button" className="button small" aria-label={`Reset XID ${xid} to its default`} onClick={() => write(xid, "")}>Reset</button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
      <label className="policy-row">
        <span>Set an action for another XID</span>
        <select value="" onChange={(event) => write(event.target.value, XIDS.find(([xid]) => String(xid) === event.target.value)![2])}>
          <option value="">choose one</option>
          {XIDS.filter(([xid]) => !chosen.has(String(xid))).map(([xid, what, standard]) => <option key={xid} value={xid}>{xid} {what} ({standard})</option>)}
        </select>
      </label>
    </details>
  );
}
