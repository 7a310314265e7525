import { afterEach, describe, expect, it } from "vitest";
import { actsOn, type Found, type FoundIncident, matches, type Offer, ofIncident, ofJob, ofNode, offered, ofTerm, parsed } from "./palette";
import { forgetRecent, keepRecent, RECENT_LIMIT, recentOf } from "./recent";
import { may } from "./rights";

const admin = { roles: ["read", "submit", "operate", "admin"], projects: { default: "admin" } };
const reader = { roles: ["read"], projects: { default: "read", mine: "operate" } };
const node = (name: string, capabilities: Record<string, string> = { drain: "", cordon: "", uncordon: "node is not cordoned", maintain: "", confirm: "is known" }) =>
  ofNode({ id: `node_${name}`, name, state: "ready", segment: "rack-1", capabilities });
const job = (name: string, project = "default") => ofJob({ id: `job_${name}`, name, project, state: "running", capabilities: { checkpoint: "", cancel: "", preempt: "", resume: "it runs" } });
const incident = (job_id: string | null): FoundIncident => ({ id: "inc_1", title: "XID 79", state: "open", job_id, job_name: job_id, node_name: "gpu-1", capabilities: { acknowledge: "" } });
const foundNodes = (names: string[], total = names.length): Found[] => [{ kind: "node", things: names.map((name) => node(name)), total }];
const offer = (given: Partial<Offer>): Offer => ({ text: "", me: admin, here: null, recent: [], settings: [], more: [], found: [], ...given });
const texts = (given: Partial<Offer>): string[] => offered(offer(given)).flatMap((group) => group.entries.map((entry) => entry.text));

describe("what may be done", () => {
  it("offers an act where the object allows it and the account may, and no other", () => {
    expect(actsOn(node("gpu-1"), admin).map((entry) => entry.text)).toEqual(["Drain gpu-1", "Set a maintenance window of gpu-1", "Cordon gpu-1"]);
    expect(actsOn(node("gpu-1"), reader)).toEqual([]);
    expect(actsOn(node("gpu-1"), undefined)).toEqual([]);
    expect(actsOn(node("gpu-1", {}), admin)).toEqual([]);
    expect(actsOn(job("a", "default"), reader)).toEqual([]);
    expect(actsOn(job("a", "mine"), reader).map((entry) => entry.text)).toEqual(["Checkpoint a now", "Preempt a", "Cancel a"]);
  });
  it("judges an incident by the project of its job, and offers nothing while that is not known", () => {
    const known = new Map([["job_a", "mine"], ["job_b", "default"]]);
    expect(actsOn(ofIncident(incident("job_a"), known), reader)).toHaveLength(1);
    expect(actsOn(ofIncident(incident("job_b"), known), reader)).toEqual([]);
    expect(actsOn(ofIncident(incident("job_c"), known), reader)).toEqual([]);
    expect(actsOn(ofIncident(incident(null), known), reader)).toEqual([]);
    expect(actsOn(ofIncident(incident(null), known), admin)).toHaveLength(1);
  });
  it.each([["operate", null, false], ["read", null, true], ["operate", "mine", true], ["admin", "mine", false], ["read", "of-others", false]] as const)("%s in %s: %s", (scope, project, expected) => {
    expect(may(reader, scope, project)).toBe(expected);
    expect(may(admin, scope, project)).toBe(true);
  });
  it("proposes the verbs of acts only to those who may do one of them somewhere", () => {
    expect(texts({ me: reader })).toContain("Checkpoint a job...");
    expect(texts({ me: reader })).not.toContain("Drain a node...");
    expect(texts({ me: { roles: ["read"], projects: {} } }).filter((text) => text.endsWith("..."))).toEqual([]);
  });
});

describe("what is asked for and may not be", () => {
  const why = (given: Partial<Offer>): (string | undefined)[][] => offered(offer(given)).flatMap((group) => group.entries.map((entry) => [entry.text, entry.why ?? ""]));
  it("stands there with the reason, after what may be", () => {
    expect(why({ me: reader, text: "drain gpu-1", found: foundNodes(["gpu-1"]) })[0]).toEqual(["Drain gpu-1", "This needs the scope operate; you have read."]);
    expect(why({ text: "uncordon gpu-1", found: foundNodes(["gpu-1"]) })[0]).toEqual(["Uncordon gpu-1", "node is not cordoned"]);
    const two: Found[] = [{ kind: "job", things: [job("a", "default"), job("b", "mine")], total: 2 }];
    expect(why({ me: reader, text: "cancel ", found: two }).slice(0, 2)).toEqual([["Cancel b", ""], ["Cancel a", "This needs the scope operate in the project default; you have read."]]);
    expect(why({ me: reader, text: "drain" })[0]).toEqual(["Drain a node...", "This needs the scope operate; you have read."]);
  });
  it("is not there while nothing is typed", () => {
    expect(why({ me: reader, here: node("gpu-1") }).filter(([, reason]) => reason !== "")).toEqual([]);
  });
});

describe("what is typed", () => {
  it("is an act and a name once a space follows a verb", () => {
    expect(parsed("drain gpu-07")).toMatchObject({ term: "gpu-07", acts: [{ does: "/nodes/{node_id}:drain" }] });
    expect(parsed("Drain ")).toMatchObject({ term: "", acts: [{ does: "/nodes/{node_id}:drain" }] });
    expect(parsed("drain")).toEqual({ term: "drain", acts: [] });
    expect(parsed("drain-1")).toEqual({ term: "drain-1", acts: [] });
    expect(parsed("two words ")).toEqual({ term: "two words", acts: [] });
  });
  it("matches by the beginnings of words", () => {
    expect(matches("Settings of the installation", "inst set")).toBe(true);
    expect(matches("Settings", "tings")).toBe(false);
    expect(matches("Submit a job", ".*(")).toBe(false);
  });
  it("shows of an older answer only what holds what is typed now", () => {
    expect(ofTerm(foundNodes(["gpu-1", "gpu-10", "cpu-1"]), "GPU-1")[0]!.things.map((thing) => thing.name)).toEqual(["gpu-1", "gpu-10"]);
    expect(texts({ text: "cordon gpu-10", found: foundNodes(["gpu-1", "gpu-10"], 40) })[0]).toBe("Cordon gpu-10");
  });
  it("begins with the page where its name is typed, and with what was found elsewhere", () => {
    expect(texts({ text: "que", found: foundNodes(["que-1"]) })[0]).toBe("Queue");
    expect(texts({ text: "gpu", found: foundNodes(["gpu-1", "gpu-2"]) })[0]).toBe("gpu-1");
  });
  it("offers the acts of what is named in full or found alone, and of nothing else", () => {
    expect(texts({ text: "gpu-1", found: foundNodes(["gpu-1", "gpu-10"]) })).toContain("Drain gpu-1");
    expect(texts({ text: "gpu-1", found: foundNodes(["gpu-1", "gpu-10"]) })).not.toContain("Drain gpu-10");
    expect(texts({ text: "gpu-1", found: foundNodes(["gpu-10"]) })).toContain("Drain gpu-10");
    expect(texts({ text: "gpu-1", found: [{ ...foundNodes(["gpu-10"])[0]!, total: null }] })).not.toContain("Drain gpu-10");
  });
  it("leads to the whole list where more was found than stands here", () => {
    const groups = offered(offer({ text: "g&u", found: [{ kind: "node", things: [node("g&u-1")], total: 12_500 }] }));
    expect(groups[0]!.entries.at(-1)).toMatchObject({ text: 'All 12,500 nodes with "g&u"', does: { to: "/nodes?q=g%26u" } });
    expect(texts({ text: "nothing-like-it", found: foundNodes(["gpu-1"], 0) })).toEqual([]);
  });
});

describe("before anything is typed", () => {
  it("begins with the acts of this page, then with what was opened last", () => {
    const here = node("gpu-1");
    const recent = [{ kind: "node", id: here.id, name: "gpu-1" }, { kind: "job", id: "job_a", name: "a" }] as const;
    const groups = offered(offer({ here, recent }));
    expect(groups.slice(0, 3).map((group) => group.label)).toEqual(["On this page", "Recent", "Go to"]);
    expect(groups[1]!.entries.map((entry) => entry.text)).toEqual(["a"]);
  });
});

describe("recent things", () => {
  afterEach(() => localStorage.clear());
  it("are the newest first, each once, a few of them, and of one account", () => {
    for (let n = 0; n < RECENT_LIMIT + 3; n += 1) keepRecent("ana", { kind: "node", id: `node_${n}`, name: `gpu-${n}` });
    keepRecent("ana", { kind: "node", id: "node_9", name: "gpu-9" });
    expect(recentOf("ana").map((item) => item.id)).toEqual(["node_9", "node_10", "node_8", "node_7", "node_6", "node_5", "node_4", "node_3"]);
    expect(recentOf("ben")).toEqual([]);
    keepRecent("ben", { kind: "job", id: "job_1", name: "b" });
    expect(recentOf("ana")).toEqual([]);
    forgetRecent();
    expect(recentOf("ben")).toEqual([]);
  });
  it.each(["{", "7", '{"of":"ana"}', '{"of":"ana","items":[null,{"kind":"page","id":"1","name":"x"},{"kind":"job","id":1,"name":"x"}]}'])("survive what is no such list: %s", (text) => {
    localStorage.setItem("holdfast.recent", text);
    expect(recentOf("ana")).toEqual([]);
  });
});
