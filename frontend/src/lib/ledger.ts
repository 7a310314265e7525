/* The GPU-second ledger as people read it: hours, what each class means, and the table as CSV. */
import type { Ledger, LedgerRow, TimeClass } from "../api/types";
import { gpuSeconds, MISSING } from "./format";
import { paths } from "./paths";

const HOUR_S = 3600;

/** What each second was, in the order in which it is drawn; the compiler refuses a class without its words. */
export const MEANING: Record<TimeClass, string> = {
  productive: "kept steps x the undisturbed step: the effective training time",
  degraded: "slower than undisturbed steps at full strength",
  checkpoint: "saves held training up",
  stall: "no step was committed for far longer than a step takes",
  recovery: "starts, changes of membership, loading and catching up",
  lost_work: "steps that a restart took back, and training them again",
  preempted: "saving, yielding and coming back for another job or a person",
  idle_spare: "kept ready for a job",
  idle: "free, and no job took it",
  cordoned: "a person or a drain keeps work away",
  down: "lost, unhealthy or quarantined",
  not_observed: "nobody saw what it did; nothing is guessed",
};

export const CLASSES = Object.keys(MEANING) as TimeClass[];
/** Held by a job, and no progress of it. */
export const LOSSES: TimeClass[] = ["degraded", "checkpoint", "stall", "recovery", "lost_work", "preempted"];

/** GPU-seconds as GPU-hours: "1,234 GPU-h", "12.3 GPU-h"; less than one as everywhere else: "120 GPU-s". */
export function gpuHours(gpuS: number | null | undefined): string {
  if (gpuS === null || gpuS === undefined || Math.abs(gpuS) < HOUR_S) return gpuSeconds(gpuS);
  const hours = gpuS / HOUR_S;
  const digits = Math.abs(hours) >= 100 ? 0 : 1;
  return `${hours.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} GPU-h`;
}

export function money(amount: number | null, currency: string | null): string {
  if (amount === null || currency === null) return MISSING;
  return `${amount.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })} ${currency}`;
}

/** Parts of a bar in the order of the classes; what is below 0, or nothing, has no width. */
export function barParts(classes: Partial<Record<string, number>>): { of: TimeClass; gpuS: number; share: number }[] {
  const shown = CLASSES.map((of) => ({ of, gpuS: Math.max(0, classes[of] ?? 0) })).filter((part) => part.gpuS > 0);
  const total = shown.reduce((sum, part) => sum + part.gpuS, 0);
  return shown.map((part) => ({ ...part, share: part.gpuS / total }));
}

export function lost(classes: Partial<Record<string, number>>): number {
  return LOSSES.reduce((sum, of) => sum + (classes[of] ?? 0), 0);
}

/** Where a row leads; null: it is told in words alone. */
export function rowPath(row: LedgerRow, by: string): string | null {
  if (by === "node") return paths.node(row.id);
  if (row.kind === "incident") return paths.incident(row.id);
  if (row.kind === "decision") return paths.decision(row.id);
  if (row.kind === "job") return paths.job(row.id);
  return null;
}

/** What people and nodes wrote is no formula of a spreadsheet. */
const cell = (value: string | number | null): string => {
  const text = value === null ? "" : typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

/** One line a row and class, as `holdfast ledger --export FILE.csv` writes them. */
export function csv(ledger: Ledger): string {
  const head = ["since", "until", "by", "kind", "id", "label", "class", "gpu_s", "gpu_hours", "money", "currency"];
  const lines = ledger.rows.flatMap((row) =>
    Object.entries(row.classes).map(([of, gpuS]) => [
      ledger.since, ledger.until, ledger.by, row.kind, row.id, row.label, of, gpuS, gpuS / HOUR_S,
      ledger.price === null ? null : (gpuS / HOUR_S) * ledger.price, ledger.currency,
    ]),
  );
  return [head, ...lines].map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
}
