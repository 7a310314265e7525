/* Phase times of an incident: from a list of moments to bars, and the plain-text report. Pure. */
import type { IncidentDetail, IncidentPhase } from "../api/types";
import { verdictWords } from "./certificate";
import { duration, gpuSeconds, scalar, words } from "./format";
import { valueText } from "./readings";

export interface PhaseBar {
  name: string;
  startS: number;
  endS: number;
  durationS: number;
}

/** A phase is named by what ends it: it lasts from the one before (or the fault) to its own moment. */
export function phaseBars(phases: readonly IncidentPhase[]): PhaseBar[] {
  const bars: PhaseBar[] = [];
  let before = 0;
  for (const phase of [...phases].sort((a, b) => (a.since_fault_s ?? 0) - (b.since_fault_s ?? 0))) {
    if (phase.since_fault_s === null) continue;
    bars.push({ name: phase.name, startS: before, endS: phase.since_fault_s, durationS: phase.since_fault_s - before });
    before = phase.since_fault_s;
  }
  return bars;
}

/** Why an incident has no time of detection: a request has nothing to detect, and what is over has none to come. */
export function notDetected(incident: Pick<IncidentDetail, "phases" | "state">): string {
  if (incident.phases[0]?.name === "ordered") return "it was requested";
  return incident.state === "resolved" ? "not measured" : "not yet";
}

/** For the post-mortem: everything on the page as text, times in UTC. */
export function incidentText(incident: IncidentDetail): string {
  const lines = [
    `Incident ${incident.id}: ${incident.title}`,
    `Job ${incident.job_name ?? "-"} (${incident.job_id ?? "-"}), state ${incident.state}`,
    `Opened ${incident.opened_at}, resolved ${incident.resolved_at ?? "not yet"}`,
    incident.outcome ? `Outcome: ${incident.outcome}${incident.needs_hardware && incident.state !== "resolved" ? ", needs hardware" : ""}` : "",
    incident.resolution,
    incident.acknowledged_by ? `Acknowledged by ${incident.acknowledged_by}: ${incident.acknowledgement}` : "",
    "",
    `Phases, seconds since the ${incident.phases[0]?.name === "ordered" ? "request" : "fault"}:`,
    ...phaseBars(incident.phases).map((bar) => `  ${words(bar.name)}: ${bar.endS.toFixed(2)} s (+${duration(bar.durationS)})`),
    "",
    "Signals:",
    ...incident.signals.map((signal) => `  ${signal.seen_at} ${words(signal.kind)} on ${signal.node_name ?? "-"}: value ${valueText(signal)}, threshold ${signal.threshold !== null ? scalar(signal.threshold) : "-"}`),
    "",
    "Decisions:",
    ...incident.decisions.flatMap((decision) => [
      `  ${decision.at} [${decision.rule}] ${words(decision.choice)}: ${decision.sentence}`,
      ...decision.alternatives.map((other) => `    instead of ${words(other.action)}: ${other.cost_gpu_s === null ? "not priced" : gpuSeconds(other.cost_gpu_s)}${other.why_not ? ` (${other.why_not})` : ""}`),
      ...(decision.commands ?? []).map((command) => `    ${words(command.kind)} to ${command.node_name}: ${command.state}`),
    ]),
    "",
    `Certificate: ${incident.certificate ? verdictWords(incident.certificate) : "none"}`,
    ...(incident.certificate?.checks ?? []).map((check) => `  ${words(check.name)}: ${check.ok === null ? "not known" : check.ok ? "holds" : "DOES NOT HOLD"} - ${check.detail}`),
  ];
  return lines.join("\n");
}
