/* What a job's spec sets of a feature. */

/** `resiliency.mode: enforce`: a field of a spec with its value; a part with several fields, or one that is not given, by its name. */
export function setBy(spec: unknown, field: string): string {
  let value: unknown = spec;
  for (const name of ["spec", ...field.split(".")]) value = typeof value === "object" && value !== null ? (value as Record<string, unknown>)[name] : undefined;
  return value === undefined || value === null || typeof value === "object" ? field : `${field}: ${String(value)}`;
}
