/* Colours of the device map: a value 0..1 to one of eight steps, plus the words beside it. Pure. */
import type { Device, DeviceLive } from "../api/types";
import { fixed, MISSING, percent } from "./format";
import { UNSEEN } from "./projects";

export type MapColour = "risk" | "temperature" | "utilization" | "job";
export const MAP_COLOURS: MapColour[] = ["risk", "temperature", "utilization", "job"];

/** Below COOL_C a device is as cool as can be, above HOT_C it throttles (data-centre GPUs: 85..95 C). */
const COOL_C = 30;
const HOT_C = 95;
export const STEPS = 8;

export interface Cell {
  /** 0..STEPS-1, or null: not reported. */
  step: number | null;
  text: string;
}

/** Of a device that has not been heard yet, its number alone. */
export type Readings = Partial<DeviceLive>;

export function readings(device: Device, pushed: DeviceLive | undefined): Readings {
  return { index: device.index, ...device.live, ...pushed };
}

function stepOf(ratio: number | null | undefined): number | null {
  if (ratio === null || ratio === undefined || Number.isNaN(ratio)) return null;
  return Math.min(STEPS - 1, Math.max(0, Math.floor(ratio * STEPS)));
}

export function cellOf(device: Device, now: Readings, colour: MapColour): Cell {
  switch (colour) {
    case "risk": {
      const risk = now.risk ?? device.risk;
      return { step: stepOf(risk), text: fixed(risk, 2) };
    }
    case "temperature": {
      const celsius = now.temperature_c;
      return { step: celsius === null || celsius === undefined ? null : stepOf((celsius - COOL_C) / (HOT_C - COOL_C)), text: fixed(celsius, 0, "C") };
    }
    case "utilization":
      return { step: stepOf(now.utilization_ratio), text: percent(now.utilization_ratio) };
    case "job":
      return { step: device.held_by ? hashStep(device.held_by.job_id) : null, text: device.held_by?.job_id === UNSEEN ? "in use" : device.held_by ? `R${device.held_by.replica} r${device.held_by.rank}` : device.spare_for ? "spare" : "free" };
    default:
      return { step: null, text: MISSING };
  }
}

/** The same job always has the same colour; two jobs may share one, so the cell names it too. */
export function hashStep(id: string): number {
  let hash = 7;
  for (const char of id) hash = (hash * 31 + char.charCodeAt(0)) >>> 0;
  return hash % STEPS;
}
