/* Join tokens in the page: to what one may be bound, for how long, and the commands that enrol a node with it. */

export type Bound = "pool" | "name" | "name_pattern" | "cidr";

/** `most` characters, as the API takes them. */
export const BOUNDS: { of: Bound; text: string; label: string; placeholder: string; most: number }[] = [
  { of: "pool", text: "Those of a pool (segment)", label: "Pool", placeholder: "rack-7", most: 63 },
  { of: "name", text: "The one of a name", label: "Name", placeholder: "gpu-a1-07", most: 100 },
  { of: "name_pattern", text: "Those of such names", label: "Pattern of names", placeholder: "gpu-a1-*", most: 100 },
  { of: "cidr", text: "Those from networks", label: "Networks, by commas", placeholder: "10.1.0.0/16", most: 500 },
];

export const VALID_S = [
  { s: 900, text: "15 minutes" }, { s: 3600, text: "1 hour" }, { s: 28_800, text: "8 hours" }, { s: 86_400, text: "1 day" }, { s: 604_800, text: "7 days" },
];

/** For a shell on the node. An agent of another name or segment than the token's is refused, so they are named. */
export function enrolCommands(origin: string, { token, segment, name }: { token: string; segment: string; name: string }): string {
  const server = origin.replace(/^http/, "ws");
  return [
    "umask 077",
    `printf '%s\\n' '${token}' > join-token`,
    `python -m agents --server ${server} --join-token-file join-token${name === "" ? "" : ` --name ${name}`}${segment === "" ? "" : ` --segment ${segment}`}`,
  ].join("\n");
}
