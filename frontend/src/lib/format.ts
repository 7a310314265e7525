/* Numbers and durations as people read them. A missing value is "not reported", never 0. */

export const MISSING = "not reported";

type Num = number | null | undefined;
const missing = (value: Num): value is null | undefined => value === null || value === undefined || Number.isNaN(value);

export function count(value: Num): string {
  return missing(value) ? MISSING : Math.round(value).toLocaleString("en-US");
}

export function fixed(value: Num, digits: number, unit = ""): string {
  return missing(value) ? MISSING : `${value.toFixed(digits)}${unit === "" ? "" : ` ${unit}`}`;
}

export function percent(ratio: Num, digits = 0): string {
  return missing(ratio) ? MISSING : `${(ratio * 100).toFixed(digits)} %`;
}

/** How far something is: all of it only once it is. */
export const progress = (ratio: Num, digits = 1): string =>
  missing(ratio) || ratio >= 1 ? percent(ratio, digits) : percent(Math.floor(ratio * 100 * 10 ** digits) / (100 * 10 ** digits), digits);

/** 0.0042 -> "4 ms", 0.31 -> "310 ms", 4.25 -> "4.3 s", 75 -> "1 m 15 s", 7265 -> "2 h 1 m", 200000 -> "2 d 7 h". */
export function duration(seconds: Num): string {
  if (missing(seconds)) return MISSING;
  const sign = seconds < 0 ? "-" : "";
  const s = Math.abs(seconds);
  if (s === 0) return "0 s";
  if (s < 1) return `${sign}${Math.max(1, Math.round(s * 1000))} ms`;
  if (s < 10) return `${sign}${s.toFixed(1)} s`;
  if (s < 60) return `${sign}${Math.round(s)} s`;
  if (s < 3600) return `${sign}${Math.floor(s / 60)} m ${Math.floor(s % 60)} s`;
  if (s < 86_400) return `${sign}${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} m`;
  return `${sign}${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value: Num): string {
  if (missing(value)) return MISSING;
  let rest = value;
  let unit = 0;
  while (rest >= 1024 && unit < UNITS.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${rest >= 100 || unit === 0 ? Math.round(rest) : rest.toFixed(1)} ${UNITS[unit]}`;
}

/** GPU-seconds; hours once they are many. */
export function gpuSeconds(value: Num): string {
  if (missing(value)) return MISSING;
  return value < 3600 ? `${value < 10 ? value.toFixed(1) : Math.round(value)} GPU-s` : `${(value / 3600).toFixed(1)} GPU-h`;
}

/** "catching_up" -> "catching up". */
export function words(name: string): string {
  return name.replaceAll("_", " ");
}

/** Any evidence value. Floats keep four significant digits. */
export function scalar(value: unknown): string {
  if (value === null || value === undefined || value === "") return MISSING;
  if (typeof value === "number") return Number.isInteger(value) ? value.toLocaleString("en-US") : String(Number(value.toPrecision(4)));
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}

const SUFFIXES: [string, (value: number) => string][] = [
  ["_gpu_s", gpuSeconds], ["_bytes", bytes], ["_ratio", (v) => percent(v, 1)], ["_mhz", (v) => `${v.toFixed(0)} MHz`], ["_s", duration], ["_c", (v) => `${v.toFixed(1)} C`], ["_w", (v) => `${v.toFixed(0)} W`],
];

/** A named value as the protocol names it: the unit moves from the name to the value. */
export function quantity(name: string, value: unknown): { name: string; text: string } {
  const found = typeof value === "number" ? SUFFIXES.find(([suffix]) => name.endsWith(suffix)) : undefined;
  if (!found) return { name: words(name), text: scalar(value) };
  return { name: words(name.slice(0, -found[0].length)), text: found[1](value as number) };
}

/** Long ids, shortened where the tail tells them apart; the full id stays in the title and the copy button. */
export function shortId(id: string): string {
  return id.length <= 14 ? id : `${id.slice(0, id.indexOf("_") + 1)}...${id.slice(-6)}`;
}
