import { expect, it } from "vitest";
import type { XidRule } from "../api/types";
import { type XidView, xidsShown, xidView } from "./xids";

const row = (xid: number, what: string, more: Partial<XidRule> = {}): XidRule => ({
  xid, what, mnemonic: `M_${xid}`, nvidia: "IGNORE", gpud: "info", aws: "", aws_note: "", standard: "ignore", because: "NVIDIA", site: "", action: "ignore", disagreements: [], ...more,
});
const ROWS = [row(6, "push buffer"), row(63, "remapping event", { disagreements: ["NVIDIA: IGNORE, gpud: fatal"] }), row(79, "off the bus", { site: "reset" })];

it.each([
  ["disagreements", "", [63]],
  ["set here", "", [79]],
  ["all", "", [6, 63, 79]],
  ["all", "6", [6, 63]],
  ["all", " BUS", [79]],
  ["all", "m_63", [63]],
  ["disagreements", "79", []],
] as const)("%s with %j shows %j", (view, q, expected) => {
  expect(xidsShown(ROWS, view, q).map((one) => one.xid)).toEqual(expected);
});

it("begins with the disagreements, whatever the address says", () => {
  expect([null, "", "all", "nonsense"].map(xidView)).toEqual<XidView[]>(["disagreements", "disagreements", "all", "disagreements"]);
});
