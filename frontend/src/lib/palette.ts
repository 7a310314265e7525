/* What the command palette offers for what is typed. Pure: what was found on the server, who asks and where the reader is
   are arguments. An act is offered where the server allows it on that object (`capabilities`) to this account (`may`). */
import type { Incident, Job, Node } from "../api/types";
import type { IconName } from "../ui/icons";
import { count, words } from "./format";
import { paths } from "./paths";
import { PLACES } from "./places";
import type { Kind, Recent } from "./recent";
import { type Account, type Act, may, scopeOf, whyMayNot, whyNowhere, wordOf } from "./rights";

export type FoundJob = Pick<Job, "id" | "name" | "project" | "state" | "capabilities">;
export type FoundNode = Pick<Node, "id" | "name" | "state" | "segment" | "capabilities">;
export type FoundIncident = Pick<Incident, "id" | "title" | "state" | "job_id" | "job_name" | "node_name" | "capabilities">;

/** One object, whatever its kind. `project` null: of the fleet; undefined: not known yet. */
export interface Thing {
  kind: Kind;
  id: string;
  name: string;
  note: string;
  /** What else it may be found by. */
  by: string[];
  project: string | null | undefined;
  capabilities: { [act: string]: string };
}

/** `to`: an address; `fill`: what is typed from now on; `ask`: the dialog of an act; `run`: a setting of this browser. */
export type Does = { to: string } | { fill: string } | { ask: Asked } | { run: () => void };

export interface Asked {
  kind: Kind;
  id: string;
  name: string;
  act: string;
}

export interface Entry {
  key: string;
  text: string;
  note?: string;
  /** Why it cannot be chosen; "" or not there: it can. */
  why?: string;
  icon: IconName;
  does: Does;
}

export interface Group {
  label: string;
  entries: Entry[];
}

interface ActWord {
  does: Act;
  kind: Kind;
  icon: IconName;
  text: (name: string) => string;
}

const ACTS: ActWord[] = [
  { does: "/jobs/{job_id}:checkpoint", kind: "job", icon: "disk", text: (name) => `Checkpoint ${name} now` },
  { does: "/jobs/{job_id}:preempt", kind: "job", icon: "hourglass", text: (name) => `Preempt ${name}` },
  { does: "/jobs/{job_id}:resume", kind: "job", icon: "play", text: (name) => `Resume ${name}` },
  { does: "/jobs/{job_id}:cancel", kind: "job", icon: "ban", text: (name) => `Cancel ${name}` },
  { does: "/nodes/{node_id}:drain", kind: "node", icon: "dash", text: (name) => `Drain ${name}` },
  { does: "/nodes/{node_id}:maintain", kind: "node", icon: "hourglass", text: (name) => `Set a maintenance window of ${name}` },
  { does: "/nodes/{node_id}:cordon", kind: "node", icon: "ban", text: (name) => `Cordon ${name}` },
  { does: "/nodes/{node_id}:uncordon", kind: "node", icon: "check", text: (name) => `Uncordon ${name}` },
  { does: "/nodes/{node_id}:confirm", kind: "node", icon: "check", text: (name) => `Confirm ${name}` },
  { does: "/incidents/{incident_id}:acknowledge", kind: "incident", icon: "eye", text: (name) => `Acknowledge: ${name}` },
];
const ARTICLE: Record<Kind, string> = { job: "a job", node: "a node", incident: "an incident" };
const ICON: Record<Kind, IconName> = { job: "list", node: "server", incident: "alert" };
const PATH: Record<Kind, (id: string) => string> = { job: paths.job, node: paths.node, incident: paths.incident };
const LIST: Record<Kind, { label: string; many: string; at: string }> = {
  job: { label: "Jobs", many: "jobs", at: paths.jobs() },
  node: { label: "Nodes", many: "nodes", at: paths.nodes() },
  incident: { label: "Incidents", many: "incidents", at: paths.incidents() },
};
export const KINDS: Kind[] = ["job", "node", "incident"];

/** Pages that the menu does not name. */
const CORNERS: { text: string; to: string; icon: IconName }[] = [
  { text: "Submit a job", to: paths.submit(), icon: "send" },
  { text: "Audit log", to: `${paths.access()}?tab=audit`, icon: "key" },
  { text: "API tokens", to: `${paths.access()}?tab=tokens`, icon: "key" },
  { text: "Agents", to: `${paths.access()}?tab=agents`, icon: "server" },
  { text: "Settings of the installation", to: `${paths.access()}?tab=settings`, icon: "wrench" },
];

export const ofJob = (job: FoundJob): Thing => ({ kind: "job", id: job.id, name: job.name, note: `${words(job.state)}, ${job.project}`, by: [job.project], project: job.project, capabilities: job.capabilities ?? {} });

export const ofNode = (node: FoundNode): Thing => ({ kind: "node", id: node.id, name: node.name, note: [words(node.state), node.segment].filter(Boolean).join(", "), by: [], project: null, capabilities: node.capabilities ?? {} });

/** `projects`: of the jobs that are known, by id. */
export const ofIncident = (incident: FoundIncident, projects: ReadonlyMap<string, string>): Thing => ({
  kind: "incident", id: incident.id, name: incident.title, note: [words(incident.state), incident.job_name ?? incident.node_name].filter(Boolean).join(", "),
  by: [incident.job_name ?? "", incident.node_name ?? ""], project: incident.job_id === null ? null : projects.get(incident.job_id), capabilities: incident.capabilities ?? {},
});

/** The act that is typed, and what is to be searched: `drain gpu-07` is an act and a name. Names have no spaces, so a word is
    an act once a space follows it. */
export function parsed(text: string): { acts: ActWord[]; term: string } {
  const [, verb, rest] = /^(\S+)\s+(.*)$/s.exec(text.trimStart()) ?? [];
  const acts = verb === undefined ? [] : ACTS.filter((word) => wordOf(word.does) === verb.toLowerCase());
  return acts.length > 0 ? { acts, term: rest!.trim() } : { acts: [], term: text.trim() };
}

/** Every word that is typed begins a word of the text. */
export function matches(text: string, typed: string): boolean {
  const parts = text.toLowerCase().split(/[^a-z0-9]+/);
  return typed.toLowerCase().split(/\s+/).filter(Boolean).every((word) => parts.some((part) => part.startsWith(word)));
}

const holds = (thing: Thing, term: string): boolean => [thing.name, ...thing.by].some((text) => text.toLowerCase().includes(term.toLowerCase()));

const inWhich = (thing: Thing): string | null => (thing.project === undefined ? "" : thing.project);

const entryOf = (word: ActWord, thing: Thing): Entry => {
  const act = wordOf(word.does);
  return { key: `act ${act} ${thing.id}`, text: word.text(thing.name), icon: word.icon, does: { ask: { kind: thing.kind, id: thing.id, name: thing.name, act } } };
};

/** The acts on it that may be ordered now, by this account. */
export function actsOn(thing: Thing, me: Account | undefined, among: readonly ActWord[] = ACTS): Entry[] {
  return among
    .filter((word) => word.kind === thing.kind && thing.capabilities[wordOf(word.does)] === "" && may(me, scopeOf(word.does), inWhich(thing)))
    .map((word) => entryOf(word, thing));
}

/** The acts that were asked for by name and may not be ordered on it, each with the reason. While it is not known in which project
    it is, there are none. */
export function refusedOn(thing: Thing, me: Account | undefined, among: readonly ActWord[]): Entry[] {
  if (thing.project === undefined) return [];
  return among
    .filter((word) => word.kind === thing.kind)
    .map((word) => ({ ...entryOf(word, thing), why: whyMayNot(me, scopeOf(word.does), thing.project) || (thing.capabilities[wordOf(word.does)] ?? "") }))
    .filter((entry) => entry.why !== "");
}

/** Verbs to begin with: choosing one types it. What this account may do nowhere is named with the reason where it is typed. */
function beginnings(me: Account | undefined, typed: string): Entry[] {
  if (me === undefined) return [];
  return ACTS
    .map((word) => {
      const [act, needed] = [wordOf(word.does), scopeOf(word.does)];
      const why = word.kind === "node" ? whyMayNot(me, needed, null) : whyNowhere(me, needed);
      return { key: `verb ${act}`, text: `${act[0]!.toUpperCase()}${act.slice(1)} ${ARTICLE[word.kind]}...`, icon: word.icon, does: { fill: `${act} ` }, why };
    })
    .filter((entry) => (typed !== "" || entry.why === "") && matches(entry.text, typed));
}

const opens = (thing: Pick<Thing, "kind" | "id" | "name">, note?: string): Entry => ({ key: `${thing.kind} ${thing.id}`, text: thing.name, note, icon: ICON[thing.kind], does: { to: PATH[thing.kind](thing.id) } });

/** What was found of one kind, and how many there are; `total` null: not counted. */
export interface Found {
  kind: Kind;
  things: Thing[];
  total: number | null;
}

/** Of another term than `term` only what holds this one too: nothing stands there that is not meant. */
export const ofTerm = (found: readonly Found[], term: string): Found[] => found.map((of) => ({ ...of, things: of.things.filter((thing) => holds(thing, term)) }));

export interface Offer {
  text: string;
  me: Account | undefined;
  /** What this page is of. */
  here: Thing | null;
  recent: readonly Recent[];
  /** Settings of this browser, and further acts of this installation. */
  settings: readonly Entry[];
  more: readonly Entry[];
  found: readonly Found[];
}

/** What is offered, in order; the first entry is what Enter does. */
export function offered(offer: Offer): Group[] {
  const groups = offer.text.trim() === "" ? atFirst(offer) : forText(offer);
  return groups.filter((group) => group.entries.length > 0);
}

function atFirst({ me, here, recent, settings, more }: Offer): Group[] {
  return [
    { label: "On this page", entries: here ? actsOn(here, me) : [] },
    { label: "Recent", entries: recent.filter((item) => item.id !== here?.id).map((item) => opens(item)) },
    { label: "Go to", entries: places("") },
    { label: "Acts", entries: [...beginnings(me, ""), ...more.filter((entry) => !entry.why)] },
    { label: "Settings and help", entries: [...settings] },
  ];
}

const places = (typed: string): Entry[] =>
  [...PLACES, ...CORNERS].filter((place) => matches(place.text, typed)).map((place) => ({ key: `place ${place.to}`, text: place.text, icon: place.icon, does: { to: place.to } }));

function forText({ text, me, settings, more, found }: Offer): Group[] {
  const { acts, term } = parsed(text);
  const shown = ofTerm(found, term);
  if (acts.length > 0) {
    const kinds = new Set(acts.map((word) => word.kind));
    return [{ label: "Acts", entries: [actsOn, refusedOn].flatMap((on) => shown.flatMap((of) => of.things.flatMap((thing) => on(thing, me, acts)))) }, ...shown.filter((of) => kinds.has(of.kind)).map((of) => things(of, term))];
  }
  const named = shown.flatMap((of) => of.things.filter((thing) => thing.name.toLowerCase() === term.toLowerCase() || (of.things.length === 1 && of.total === 1)));
  const goTo = places(text);
  const first = goTo.some((entry) => entry.text.toLowerCase().startsWith(text.trim().toLowerCase()));
  return [
    ...(first ? [{ label: "Go to", entries: goTo }] : []),
    ...shown.map((of) => things(of, term)),
    { label: "Acts", entries: [...named.flatMap((thing) => actsOn(thing, me)), ...beginnings(me, text), ...more.filter((entry) => matches(entry.text, text))] },
    ...(first ? [] : [{ label: "Go to", entries: goTo }]),
    { label: "Settings and help", entries: settings.filter((entry) => matches(entry.text, text)) },
  ];
}

function things(of: Found, term: string): Group {
  const { label, many, at } = LIST[of.kind];
  const entries = of.things.map((thing) => opens(thing, thing.note));
  if (term !== "" && of.total !== null && of.total > of.things.length && of.things.length > 0)
    entries.push({ key: `all ${of.kind}`, text: `All ${count(of.total)} ${many} with "${term}"`, icon: "search", does: { to: `${at}?q=${encodeURIComponent(term)}` } });
  return { label, entries };
}
