/* Policy documents in the page: a form over the simple YAML that a document is (flat fields and two tables), and what
   a dry run over the journal comes to. The server parses and checks every text; this reads only its simple form. */
import type { PolicyReplay } from "../api/types";

export type Draft = { [field: string]: string | { [row: string]: string } };
export const TABLES = ["xid_overrides", "rule_modes"] as const;

const LINE = /^([\w.]+):\s*(.*)$/;
const ROW = /^\s+([\w.]+):\s*(\S.*)$/;
const uncommented = (line: string): string => line.replace(/(^|\s)#.*$/, "").trimEnd();
const unquoted = (text: string): string => text.replace(/^(["'])(.*)\1$/, "$2");

/** The fields of a text; null where it says more than a form can show (it is then edited as text). */
export function draftFrom(text: string): Draft | null {
  const draft: Draft = {};
  let table: { [row: string]: string } | null = null;
  for (const line of text.split("\n").map(uncommented)) {
    if (line.trim() === "" || line.trim() === "{}") continue;
    const row = ROW.exec(line);
    if (row) {
      if (!table) return null;
      table[row[1]!] = unquoted(row[2]!);
      continue;
    }
    const field = LINE.exec(line);
    if (!field || /^[[{&*|>!]/.test(field[2]!)) return null;
    const name = field[1]!;
    const isTable = (TABLES as readonly string[]).includes(name);
    if (isTable !== (field[2] === "") || name in draft) return null;
    table = isTable ? {} : null;
    draft[name] = table ?? unquoted(field[2]!);
  }
  return draft;
}

/** The text of a draft, in the order of its fields; what holds nothing is left out. */
export function textFrom(draft: Draft): string {
  const lines: string[] = [];
  for (const [name, value] of Object.entries(draft)) {
    if (typeof value === "string") {
      if (value.trim() !== "") lines.push(`${name}: ${value.trim()}`);
    } else if (Object.keys(value).length > 0) {
      lines.push(`${name}:`, ...Object.entries(value).map(([row, word]) => `  ${row}: ${word}`));
    }
  }
  return lines.length === 0 ? "{}\n" : `${lines.join("\n")}\n`;
}

/** With one field set; "": it has its default again. */
export function withField(draft: Draft, name: string, value: string): Draft {
  const { [name]: _, ...others } = draft;
  return value.trim() === "" ? others : { ...draft, [name]: value };
}

/** With one row of a table set; "": without it. */
export function withRow(draft: Draft, table: string, row: string, value: string): Draft {
  const rows = typeof draft[table] === "object" ? draft[table] : {};
  const { [row]: _, ...others } = rows;
  const next = value === "" ? others : { ...rows, [row]: value };
  const { [table]: __, ...rest } = draft;
  return Object.keys(next).length === 0 ? rest : { ...draft, [table]: next };
}

/** One XID whose action a draft sets; `standard`: the action that it has otherwise. */
export interface XidRow {
  xid: string;
  what: string;
  standard: string;
  action: string;
}

/** The XIDs of a draft in the order of their numbers, described by `catalogue`. */
export function xidRows(draft: Draft, catalogue: readonly (readonly [number, string, string])[]): XidRow[] {
  const set = draft["xid_overrides"];
  if (typeof set !== "object") return [];
  const known = new Map(catalogue.map(([xid, what, standard]) => [String(xid), { what, standard }]));
  return Object.entries(set)
    .sort(([one], [other]) => Number(one) - Number(other))
    .map(([xid, action]) => ({ xid, action, ...(known.get(xid) ?? { what: "not in the catalogue", standard: "" }) }));
}

/** Whose policy: a job's, a project's, or with both empty the fleet's. */
export interface PolicyOf {
  job_id: string;
  project: string;
}

/** Of the address of the page (`?job=`, `?project=`). */
export function policyOf(params: URLSearchParams): PolicyOf {
  const job_id = params.get("job") ?? "";
  return { job_id, project: job_id === "" ? (params.get("project") ?? "") : "" };
}

/** As the chooser names it, and back into the address. */
export const chosen = ({ job_id, project }: PolicyOf): string => (job_id !== "" ? `job ${job_id}` : project !== "" ? `project ${project}` : "");
export function paramsOf(choice: string): { [name: string]: string } {
  const [kind = "", ...rest] = choice.split(" ");
  return kind === "" ? {} : { [kind]: rest.join(" ") };
}

/** "fleet 3, project 1": the documents behind a decision. */
export function documentsText(numbers: { [scope: string]: number } | null | undefined): string {
  return Object.entries(numbers ?? {}).map(([scope, number]) => `${scope} ${number}`).join(", ");
}

export type Differing = PolicyReplay["differences"][number];
export type Change = PolicyReplay["changes"][number];

/** All pages of a dry run: acts by choice that would have been carried out besides, and those that would not. */
export interface DryRunResult {
  replayed: number;
  equal: number;
  differences: Differing[];
  leftOut: { [reason: string]: number };
  changes: Change[];
  more: { [choice: string]: number };
  fewer: { [choice: string]: number };
  /** Change in GPU-seconds by the decisions' own prices, of `priced` differences. */
  costGpuS: number;
  priced: number;
}

const add = (counts: { [name: string]: number }, name: string, number = 1): void => void (counts[name] = (counts[name] ?? 0) + number);

export function merged(pages: PolicyReplay[]): DryRunResult {
  const whole: DryRunResult = { replayed: 0, equal: 0, differences: [], leftOut: {}, changes: [], more: {}, fewer: {}, costGpuS: 0, priced: 0 };
  const added = new Set<string>();
  for (const page of pages) {
    whole.replayed += page.replayed;
    whole.equal += page.equal;
    whole.changes = page.changes;
    for (const [reason, number] of Object.entries(page.left_out)) add(whole.leftOut, reason, number);
    for (const each of page.differences) {
      const name = `${each.job_id ?? ""} ${each.key}`;
      if (each.kind === "added" && added.has(name)) continue;
      if (each.kind === "added") added.add(name);
      whole.differences.push(each);
      count(whole, each);
    }
  }
  return whole;
}

function count(whole: DryRunResult, { before, after }: Differing): void {
  const done = before?.mode === "enforce";
  const would = after?.mode === "enforce";
  const same = done && would && before.choice === after.choice;
  if (done && !same) add(whole.fewer, before.choice);
  if (would && !same) add(whole.more, after.choice);
  const costs = [done ? before.cost_gpu_s : 0, would ? after.cost_gpu_s : 0];
  if ((done || would) && costs[0] != null && costs[1] != null) {
    whole.costGpuS += costs[1] - costs[0];
    whole.priced += 1;
  }
}

/** "evict and replace 3, restart 1". */
export function listed(counts: { [choice: string]: number }): string {
  return Object.entries(counts).sort().map(([choice, number]) => `${choice.replaceAll("_", " ")} ${number}`).join(", ");
}
