/* Development server: the HTTP and live contract with fixtures, and the built bundle. Serves
   tests of the pages and work on them without a backend. `node mock/server.mjs [port]`; port 0
   takes a free one and prints it. Its own addresses: /api/v1/... as documented; jobs, incidents
   and nodes whose id contains "missing" answer 404, "broken" 500; user "empty" sees a new installation,
   user "crowd" 1,000 nodes and 431 incidents, user "silent" a node that is not heard, user "expired" is
   signed out by every second order. */
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { dirname, extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { WebSocketServer } from "ws";
import * as f from "./fixtures.mjs";
import * as w from "./world.mjs";

const STATIC = join(dirname(fileURLToPath(import.meta.url)), "../../controlplane/api/static");
const TYPES = { ".js": "text/javascript", ".css": "text/css", ".html": "text/html; charset=utf-8", ".json": "application/json", ".svg": "image/svg+xml" };
const CSP = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'";
let seq = 140;

const list = (items) => ({ items, next: null, as_of_seq: seq, total: items.length });
const paged = (rows, params) => {
  const from = Number(params.get("cursor") ?? 0);
  const limit = Number(params.get("limit") ?? 50);
  return { items: rows.slice(from, from + limit), next: from + limit < rows.length ? String(from + limit) : null, as_of_seq: seq, total: rows.length };
};
const detail = (object) => ({ ...object, as_of_seq: seq });

const VALUES = { slow_rank: { label: "Seconds more a micro-batch (0 heals)", default: "0.5", choices: [] }, kill_backend: { label: "Process", default: "worker", choices: ["web", "worker", "sentinel", "redis"] } };
const FAULTS = [
  ["slow_rank", "Slow a rank down", "Each micro-batch takes so much longer; 0 heals.", ["rank"]],
  ["kill_rank", "Kill a rank", "SIGKILL to one rank's process.", ["rank"]], ["hang_rank", "Hang a rank", "The rank stops making progress inside its step.", ["rank"]],
  ["stop_rank", "Stop a rank", "SIGSTOP: the process is alive and silent.", ["rank"]], ["overheat_device", "Overheat a device", "The simulated sensor climbs to the target.", ["device"]],
  ["xid", "XID error", "The driver reports an XID on a device.", ["device"]], ["kill_node", "Kill a node", "Its agent and all its ranks end at once.", ["node"]],
  ["cut_node", "Cut a node's link", "Its agent cannot reach the control plane for a while.", ["node"]], ["kill_backend", "Kill a backend process", "Training must not notice.", []],
  ["corrupt_checkpoint", "Corrupt the newest checkpoint", "One shard is damaged on disk.", ["job"]],
].map(([kind, title, description, needs]) => ({ kind, title, description, needs, value: VALUES[kind] ?? null }));

class Refusal extends Error {
  constructor(status, title, text, errors = []) {
    super(text);
    this.answer = { type: `/problems/${status}`, title, status, detail: text, instance: "", request_id: "req_0123456789", errors };
  }
}

function find(items, id, what) {
  if (id.includes("broken")) throw new Refusal(500, "Internal error", "The server failed; the error is recorded under this request id.");
  const found = items.find((item) => item.id === id);
  if (!found) throw new Refusal(404, "Not found", `There is no ${what} ${id}, or you may not see it.`);
  return found;
}

function incidentDetail(id) {
  const incident = find(f.incidents(), id, "incident");
  const open = incident.state === "open";
  const own = f.decisions().filter((decision) => decision.incident_id === id).reverse();
  return {
    ...incident, decisions: own, stacks: incident.state === "resolved" && incident.job_id ? [{ rank: 0, method: "py_spy", text: f.STACK }, { rank: 1, method: "py_spy", text: f.STACK }] : [], events: f.events(12),
    signals: open ? [f.signal(3, "device_risk", { rank: null, replica: null, incarnation: null, value: 0.71, threshold: 0.3, seen_at: f.iso(14), settled_at: null })] : [f.signal(1, "rank_exited"), f.signal(2, "outer_error", { value: 1, rank: 1 })],
  };
}

function jobsPage(params, user) {
  const q = (params.get("q") ?? "").toLowerCase();
  const rows = jobsOf(user).filter((job) => (!params.get("state") || job.state === params.get("state")) && `${job.name} ${job.owner} ${job.project} ${job.id}`.toLowerCase().includes(q));
  return paged(rows, params);
}

function nodesPage(params, user) {
  const q = (params.get("q") ?? "").toLowerCase();
  return paged((user === "crowd" ? w.crowd(1_000) : nodesOf(user)).filter((node) => node.name.toLowerCase().includes(q)), params);
}

/* For the user "silent" the second node's agent is connected and has said nothing for 21 s. */
const silentNode = (node) => ({ ...node, last_seen_age_s: 21, not_heard: [{ job_id: f.JOB, node_id: node.id, node_name: node.name, since: f.iso(21), commits: true, left_out: false }] });
const nodesOf = (user) => w.nodes().map((node, i) => (user === "silent" && i === 1 ? silentNode(node) : node));
const jobsOf = (user) => w.jobs().map((job) => (user === "silent" && job.id === f.JOB ? { ...job, not_heard: nodesOf(user)[1].not_heard } : job));

function incidentsPage(params, user) {
  const few = f.incidents();
  const rows = user === "crowd" ? Array.from({ length: 431 }, (_, i) => ({ ...few[2], id: f.id("inc", 1_000 + i), title: `Rank ${i} of replica 1 was killed (SIGKILL)` })) : few;
  return paged(rows.filter((item) => !params.get("state") || params.get("state").split(",").includes(item.state)), params);
}

function series(node, windowS) {
  const points = 300;
  const now = Date.now();
  return {
    devices: [0, 1].map((index) => {
      const t = Array.from({ length: points }, (_, i) => Math.floor(now / 1000 - windowS + (i * windowS) / points));
      const at = t.map((s) => w.sample(node, index, s * 1000));
      const line = (name) => at.map((s) => s[name]);
      return { index, t, temperature_c: line("temperature_c"), power_w: line("power_w"), utilization_ratio: line("utilization_ratio"), memory_used_bytes: line("memory_used_bytes"), sm_clock_mhz: line("sm_clock_mhz"), risk: line("risk") };
    }),
  };
}

function jobRoute(id, part, params) {
  const row = find(w.jobs(), id, "job");
  const main = id === f.JOB;
  switch (part) {
    case undefined: return detail(w.jobDetail(Number(id.slice(-6))));
    case "replicas": return list(main ? w.replicas() : []);
    case "steps": return list(main ? w.steps(Number(params.get("since_step") ?? 0)) : []);
    case "events": return list(main ? f.events() : []);
    case "decisions": return list(main ? f.decisions() : []);
    case "incidents": return list(main ? f.incidents().filter((incident) => incident.job_id === row.id) : []);
    case "checkpoints": return list(main ? w.checkpoints() : []);
    case "timeouts": return list(w.timeouts());
    case "budget": return detail(w.budget(main));
    case "logs": return { text: `[rank ${params.get("rank")}] step 213 loss 3.21\n[rank ${params.get("rank")}] step 214 loss 3.20\n`, truncated: true, attempt: 1, incarnation: Number(params.get("incarnation") ?? 1), replica: Number(params.get("replica")), rank: Number(params.get("rank")), state: "exited", source: "exit", at: null };
    default: throw new Refusal(404, "Not found", "No such part.");
  }
}

function nodeRoute(id, part, params, user) {
  const node = find(user === "crowd" ? w.crowd(1_000) : nodesOf(user), id, "node");
  const at = w.nodes().findIndex((item) => item.id === id);
  if (part === "series") return series(at, Number(params.get("window_s") ?? 600));
  if (part === "dead-letters") return list(w.deadLetters(at));
  const ranks = w.replicas().filter((replica) => replica.current).flatMap((replica) => replica.ranks).filter((rank) => rank.node_id === id);
  const deadLetters = w.deadLetters(at).filter((letter) => letter.state === "waiting").length;
  return detail({ ...node, dead_letters: deadLetters, signals: at === 1 ? [f.signal(3, "device_risk", { value: 0.71, threshold: 0.3, seen_at: f.iso(14), settled_at: null }), f.signal(4, "node_check", { job_id: null, replica: null, incarnation: null, rank: null, device_index: null, value: null, evidence: { detail: "driver: device 0 has driver 535.129.03, 570 or newer is needed", node: "node-b" }, seen_at: f.iso(20), settled_at: null })] : [], ranks: ranks.map((rank) => ({ ...rank, job_id: f.JOB })), events: f.events(10) });
}

function emptyWorld(path) {
  if (path === "/overview") return detail({ ...w.overview(), jobs: {}, nodes: {}, devices: { total: 0, healthy: 0, at_risk: 0, lost: 0, busy: 0, spare: 0 }, open_incidents: 0, attention: { live: 0, lost: 0, hardware: 0, incidents: [] }, decisions_last_hour: 0, goodput_24h: null, recent_incidents: [], recent_decisions: [], health: { ...w.health(), agents_connected: 0, agents_total: 0, dead_letters: 0 } });
  return ["/jobs", "/nodes", "/incidents"].includes(path) ? list([]) : null;
}

function read(path, params, user) {
  if (user === "empty") {
    const answer = emptyWorld(path);
    if (answer) return answer;
  }
  const [, kind, id, part] = path.split("/");
  if (path === "/me") return { username: user, roles: ["admin"], demo: true, csrf: "mock" };
  if (path === "/version") return { version: "0.1.0 (mock)" };
  if (path === "/overview") return detail(w.overview());
  if (path === "/demo/faults") return { items: FAULTS };
  if (path === "/jobs") return jobsPage(params, user);
  if (path === "/nodes") return nodesPage(params, user);
  if (path === "/incidents") return incidentsPage(params, user);
  if (kind === "jobs") return jobRoute(id, part, params);
  if (kind === "nodes") return nodeRoute(id, part, params, user);
  if (kind === "incidents") return detail(incidentDetail(id));
  if (kind === "decisions") return find(f.decisions(), id, "decision");
  throw new Refusal(404, "Not found", `Nothing is served at ${path}.`);
}

function write(path, params, body) {
  if (path === "/login") {
    const { username, password } = JSON.parse(body);
    if (password !== "holdfast") throw new Refusal(401, "Wrong user name or password", "After five failures this name has to wait for a minute.");
    return { status: 200, cookie: `mock_session=${username}; Path=/; HttpOnly; SameSite=Lax`, body: { username, roles: ["admin"], demo: true } };
  }
  if (path === "/logout") return { status: 200, cookie: "mock_session=; Path=/; Max-Age=0", body: {} };
  if (path === "/jobs") {
    if (body.includes("tp: 3") && params.get("dry_run")) return { status: 200, body: { spec: null, defaults: [], placement: null, waits_for: "", faults: [{ pointer: "/spec/parallelism/tp", message: "4 heads cannot be split over tp 3", fix: "use 1, 2 or 4" }] } };
    if (body.includes("tp: 3")) throw new Refusal(422, "The job spec has faults", "2 faults; nothing was started.", [{ pointer: "/spec/parallelism/tp", message: "4 heads cannot be split over tp 3", fix: "use 1, 2 or 4" }, { pointer: "/spec/resources/min_replicas", message: "2 replicas need 6 devices, 4 are asked for", fix: "nodes: 4" }]);
    return params.get("dry_run") ? { status: 200, body: { spec: w.SPEC, defaults: ["/spec/model", "/spec/scheduling"], placement: null, waits_for: "3 replicas of 2 need 6 devices, 4 are free", faults: [] } } : { status: 201, body: w.job(1) };
  }
  if (path === "/demo/faults") {
    setTimeout(() => push({ kind: "incident.opened", sentence: "Incident opened", entity: "incident", entity_id: f.id("inc", 2), job_id: f.JOB, node_id: f.nodeId(1), patch: f.incidents()[1] }), 600);
    return { status: 202, body: { detail: "Injected." } };
  }
  return { status: 202, body: { detail: "Accepted; the next decision carries it out.", command_ids: [] } };
}

const sockets = new Set();
const send = (message) => {
  for (const socket of sockets) if (socket.readyState === 1) socket.send(JSON.stringify(message));
};
function push(event) {
  seq += 1;
  send({ type: "event", event: { seq, at: f.iso(0), data: {}, patch: null, job_id: null, node_id: null, ...event } });
}

function pushRanks() {
  const ranks = w.replicas().filter((replica) => replica.current).flatMap((replica) => replica.ranks);
  send({ type: "ranks", job_id: f.JOB, at: f.iso(0), ranks: ranks.map((rank) => ({ replica: rank.replica, incarnation: rank.incarnation, rank: rank.rank, section: rank.live.section, phase: (Date.now() / 500) % 3 < 2 ? rank.live.phase : "exchange", step: rank.live.step, phase_age_s: 0.1, silent_s: 0.3 })) });
}

let lastStep = w.stepNow();
function pushSteps() {
  const now = w.stepNow();
  if (now > lastStep) {
    send({ type: "steps", job_id: f.JOB, points: w.steps(lastStep) });
    push({ kind: "job.progress", sentence: `Step ${now} is committed`, job_id: f.JOB, entity: "job", entity_id: f.JOB });
    lastStep = now;
  }
}

function pushDevices() {
  w.nodes().forEach((node, i) => {
    for (const socket of sockets) {
      const silent_s = socket.user === "silent" && i === 1 ? 21 + (Date.now() - f.T0) / 1000 : 0.4;
      if (socket.readyState === 1) socket.send(JSON.stringify({ type: "devices", node_id: node.id, at: f.iso(0), silent_s, devices: [0, 1].map((index) => w.sample(i, index)) }));
    }
  });
}

function startTimers() {
  setInterval(pushRanks, 500).unref();
  setInterval(pushSteps, 1_000).unref();
  setInterval(pushDevices, 1_000).unref();
  setInterval(() => send({ type: "health", health: w.health() }), 2_000).unref();
}

async function serveStatic(path, response) {
  const inside = normalize(path.replace("/static/", "")).replace(/^(\.\.[/\\])+/, "");
  const page = path.startsWith("/static/") ? join(STATIC, inside) : join(STATIC, "ui/index.html");
  try {
    const body = await readFile(page);
    response.writeHead(200, { "content-type": TYPES[extname(page)] ?? "application/octet-stream", "content-security-policy": CSP, "cache-control": "no-store" });
    response.end(body);
  } catch {
    response.writeHead(404).end();
  }
}

const refused = new Set();
function refusedOnce(user) {
  if (refused.delete(user)) return false;
  refused.add(user);
  return true;
}
/* What was asked, for tests: GET /mock/calls answers it and begins anew. */
let calls = [];
const sessionOf = (request) => /mock_session=([^;]+)/.exec(request.headers.cookie ?? "")?.[1];

async function serveApi(request, response, url) {
  const path = url.pathname.slice("/api/v1".length);
  let body = "";
  for await (const chunk of request) body += chunk;
  const json = (status, value, headers = {}) => {
    response.writeHead(status, { "content-type": status >= 400 ? "application/problem+json" : "application/json", "set-cookie": ["csrftoken=mock; Path=/", ...(headers.cookie ? [headers.cookie] : [])] });
    response.end(JSON.stringify(value));
  };
  try {
    const user = sessionOf(request);
    if (!user && path !== "/login") throw new Refusal(401, "Not signed in", "Sign in first.");
    if (request.method === "GET") calls.push(`GET ${path}`);
    if (request.method === "GET") return json(200, read(path, url.searchParams, user));
    if (user === "expired" && !["/login", "/logout"].includes(path) && refusedOnce(user)) throw new Refusal(401, "Not signed in", "Sign in, or send `Authorization: Bearer holdfast_...`.");
    calls.push(`${request.method} ${path}`);
    const answer = write(path, url.searchParams, body);
    return json(answer.status, answer.body, { cookie: answer.cookie });
  } catch (error) {
    if (error instanceof Refusal) return json(error.answer.status, { ...error.answer, instance: url.pathname });
    throw error;
  }
}

const server = createServer((request, response) => {
  const url = new URL(request.url, "http://localhost");
  if (url.pathname === "/mock/calls") {
    response.end(JSON.stringify(calls));
    calls = [];
    return;
  }
  void (url.pathname.startsWith("/api/") ? serveApi(request, response, url) : serveStatic(url.pathname, response));
});
const gate = new WebSocketServer({ noServer: true });
server.on("upgrade", (request, socket, head) => {
  if (!sessionOf(request)) return socket.destroy();
  gate.handleUpgrade(request, socket, head, (ws) => {
    ws.user = sessionOf(request);
    sockets.add(ws);
    ws.on("close", () => sockets.delete(ws));
    ws.on("message", (text) => {
      if (JSON.parse(String(text)).type === "ping") ws.send('{"type":"pong"}');
    });
    ws.send(JSON.stringify({ type: "hello", seq, version: "0.1.0" }));
  });
});
startTimers();
server.listen(Number(process.argv[2] ?? 8900), "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
