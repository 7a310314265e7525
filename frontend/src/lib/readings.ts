/* What a device's readings say, in words. A missing reading is missing, never 0. Pure. */
import type { Signal } from "../api/types";
import type { Readings } from "./heat";
import { fixed, MISSING, scalar, words } from "./format";

/** Throttle reasons that hold a device back; idling and following others do not. */
const HOLDS_BACK: Record<string, string> = {
  hw_slowdown: "slowed by its hardware",
  hw_thermal_slowdown: "too hot, slowed by its hardware",
  hw_power_brake_slowdown: "power brake",
  sw_thermal_slowdown: "too hot, slowed by its driver",
  sw_power_cap: "at its power limit",
};

/** Corrected and uncorrectable errors are two figures and never one. */
export function errorsText(now: Readings): string {
  if (missing(now.ecc_corrected_total) && missing(now.ecc_uncorrected_total)) return MISSING;
  return `${fixed(now.ecc_uncorrected_total, 0)} uncorrectable, ${fixed(now.ecc_corrected_total, 0)} corrected`;
}

export function remapText(now: Readings): string {
  const pages = missing(now.retired_pages_total) ? "" : `, ${now.retired_pages_total} retired pages`;
  if (now.row_remap_failure) return `row remap failed${pages}`;
  if (now.row_remap_pending) return `rows wait for a reset${pages}`;
  return missing(now.row_remap_pending) ? `row remap not reported${pages}` : `no row waits${pages}`;
}

export function heldBack(now: Readings): string {
  if (now.throttle_reasons === undefined || now.throttle_reasons === null) return MISSING;
  const found = now.throttle_reasons.flatMap((reason) => HOLDS_BACK[reason] ?? []);
  return found.length > 0 ? found.join(", ") : "not held back";
}

/** The parts that make the score, the largest share first. */
export function partsText(now: Readings): string {
  const shares = Object.entries(now.risk_parts ?? {}).filter(([, share]) => share >= 0.005);
  return shares.sort((a, b) => b[1] - a[1]).map(([name, share]) => `${words(name).toLowerCase()} ${share.toFixed(2)}`).join(", ");
}

/** The finding by its own name: an XID with what it means, a reading by which it is. */
export function signalText(signal: Signal): string {
  const meaning = signal.evidence["meaning"];
  if (signal.kind === "xid") return typeof meaning === "string" && meaning !== "" ? `XID ${signal.value}: ${meaning}` : `XID ${signal.value}`;
  const reading = signal.evidence["reading"];
  if (signal.kind === "device_reading" && typeof reading === "string") return words(reading);
  return words(signal.kind);
}

/** A finding's value. Null: its kind has none, what it tells is in its words; or nobody saw it, which is said. */
export function valueText(signal: Pick<Signal, "value" | "evidence">): string {
  if (signal.value !== null) return scalar(signal.value);
  return signal.evidence["told"] === false ? "not seen" : "-";
}

function missing(value: unknown): boolean {
  return value === null || value === undefined;
}
