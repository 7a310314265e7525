/* A certificate's verdict in words. Pure. */
import type { Certificate, Repeated } from "../api/types";

/** `word` for a verdict on all checks; "incomplete: 4 of 5 judged" where some could not be judged. */
export function verdictWords(certificate: Certificate, word: string = certificate.state): string {
  if (certificate.state !== "incomplete") return word;
  const judged = certificate.judged ?? certificate.checks.filter((check) => check.ok !== null).length;
  return `incomplete: ${judged} of ${certificate.of ?? certificate.checks.length} judged`;
}

/** What a restart from a checkpoint had to train again, and whether it came out alike. */
export function repeatedWords(repeated: Repeated): string {
  const text = `Steps ${repeated.first} to ${repeated.last} were trained again, ${repeated.again} of ${repeated.steps} so far`;
  if (repeated.largest_difference === null) return `${text}; no loss could be compared.`;
  return `${text}; ${repeated.compared} losses differ by at most ${repeated.largest_difference.toExponential(1)}.`;
}
