/* The mock's moving parts: jobs, nodes, replicas and their live readings, at a given moment. */
import { decisions, id, incidents, iso, JOB, NODE_NAMES, nodeId, random, T0 } from "./fixtures.mjs";

export const STEP_S = 0.62;
export const TOTAL = 2_000;
export const stepNow = () => Math.min(TOTAL, 214 + Math.floor((Date.now() - T0) / 1000 / STEP_S));

const LAYOUT = { tp: 1, pp: 2, vp: 1, cp: 1, ep: 1, replica_dp: 1, dp: 3 };
const STATES = ["running", "running", "succeeded", "succeeded", "succeeded", "failed", "cancelled", "pending", "recovering", "starting"];
const NAMES = ["gpt-857m", "llama-ablate", "moe-router", "long-context", "code-sft", "speech-pre", "vision-dp", "bench-fp8"];
const OWNERS = ["ana", "bo", "chen", "divya", "emil"];

function jobRow(n) {
  const r = random(n);
  const state = n === 1 ? "running" : STATES[Math.floor(r() * STATES.length)];
  const total = n === 1 ? TOTAL : 500 + Math.floor(r() * 20) * 500;
  const step = n === 1 ? stepNow() : state === "pending" ? 0 : state === "succeeded" ? total : Math.floor(r() * total);
  const live = state === "running" || state === "recovering";
  return {
    id: id("job", n), name: n === 1 ? "gpt-tiny-holdfast" : `${NAMES[n % NAMES.length]}-${String(n).padStart(4, "0")}`, project: n === 1 ? "demo" : ["nlp", "vision", "speech"][n % 3],
    owner: n === 1 ? "ana" : OWNERS[n % OWNERS.length], state, state_reason: "", state_since: iso(n === 1 ? 410 : 60 * n), epoch: n === 1 ? 9 : Math.floor(r() * 20),
    committed_step: step, total_steps: total, progress: step / total, step_time_s: live ? (n === 1 ? STEP_S : 0.4 + r() * 4) : null,
    loss: step > 0 ? 1.4 + 4.1 * Math.exp(-step / 260) : null, eta_s: live ? (total - step) * STEP_S : null, attempt: state === "pending" ? null : 1, restarts: Math.floor(r() * 3),
    evictions: n === 1 ? 2 : Math.floor(r() * 3), replicas_active: live ? (state === "recovering" ? 2 : 3) : 0, replicas_total: 3,
    last_checkpoint_step: step > 50 ? step - (step % 50) : null, last_checkpoint_age_s: live ? 20 + Math.floor(r() * 90) : null, work_at_risk_s: live ? 9.9 : null,
    ettr: step > 0 ? 0.93 + r() * 0.06 : null, undisturbed_step_s: step > 0 ? 0.61 : null, productivity: step > 0 ? 0.97 : null, open_incident_id: n === 1 ? id("inc", 3) : null, created_at: iso(n === 1 ? 560 : 100 * n), finished_at: ["succeeded", "failed", "cancelled"].includes(state) ? iso(50 * n) : null, not_heard: [],
  };
}

export const job = (n = 1) => jobRow(n);
export const jobs = () => Array.from({ length: 1_000 }, (_, i) => jobRow(i + 1));

export const SPEC = {
  apiVersion: "holdfast/v1", kind: "TrainJob", metadata: { name: "gpt-tiny-holdfast", project: "demo" },
  spec: { resources: { nodes: 3, gpus_per_node: 2, min_replicas: 1, spares: { gpus: 2, warm: true } }, parallelism: { tp: 1, pp: 2, cp: 1, dp: "auto" }, training: { steps: TOTAL, global_batch: 12, micro_batch: 1 }, checkpoint: { interval_steps: 50, keep: 3 }, resiliency: { mode: "enforce", allow_faults: true } },
};

export function jobDetail(n = 1) {
  const row = jobRow(n);
  return {
    ...row, spec: SPEC, layout: { ...LAYOUT },
    attempts: row.attempt ? [{ number: 1, state: row.finished_at ? "ended" : "running", layout: { ...LAYOUT }, replicas: 3, resume_step: 0, started_at: iso(548), ended_at: row.finished_at, end_reason: "" }] : [],
    spares: n === 1 ? [{ node_id: nodeId(3), node_name: "node-d", device_index: 0 }, { node_id: nodeId(3), node_name: "node-d", device_index: 1 }] : [],
    why: n === 1 ? "All three replicas contribute; the next checkpoint is due at the next multiple of 50 steps." : row.state === "pending" ? "It needs 6 devices; 2 are free. It starts when a running job ends." : `It is ${row.state}.`,
  };
}

function rank(replica, incarnation, r, node, over = {}) {
  return {
    id: `${JOB}/1/${replica}/${incarnation}/${r}`, replica, incarnation, rank: r, global_rank: replica * 2 + r, tp: 0, pp: r, cp: 0,
    node_id: nodeId(node), node_name: NODE_NAMES[node], device_index: r, device_uuid: `GPU-${node}f3c-${r}`, state: "training", pid: 41_000 + replica * 100 + incarnation * 10 + r,
    started_at: iso(incarnation === 1 ? 546 : 418), joined_at: iso(incarnation === 1 ? 540 : 411), exit_code: null, exit_signal: null,
    live: { section: "step", phase: "compute", step: stepNow(), phase_age_s: 0.2, silent_s: 0.4, at: iso(0.4) }, ...over,
  };
}

export function replicas() {
  const make = (index, incarnation, node, over = {}, rankOver = {}) => ({
    id: `${JOB}/1/${index}/${incarnation}`, attempt: 1, index, incarnation, state: "active", created_at: iso(incarnation === 1 ? 540 : 410), state_since: iso(incarnation === 1 ? 540 : 410), contributing: true,
    committed_step: stepNow(), caught_up: null, current: true, ranks: [rank(index, incarnation, 0, node, rankOver), rank(index, incarnation, 1, node, rankOver)], ...over,
  });
  const dead = { state: "exited", exit_signal: 9, live: null };
  return [
    make(0, 1, 0),
    make(1, 1, 1, { state: "evicted", state_since: iso(419.6), contributing: false, committed_step: 195, current: false }, dead),
    make(1, 2, 1, { caught_up: { step: 203, replayed_steps: 7, fetch_s: 0.8, donor: 0 } }),
    make(2, 1, 2, { state: "evicted", state_since: iso(43), contributing: false, committed_step: 180, current: false }, { state: "hung", live: null, exit_signal: 9 }),
    make(2, 2, 2, { state: "catching_up", state_since: iso(20), contributing: false }, { started_at: iso(40), joined_at: iso(20), state: "initializing", live: { section: "setup", phase: "fetching", step: stepNow() - 4, phase_age_s: 3.1, silent_s: 0.3, at: iso(0.3) } }),
  ];
}

/* The point that brings the count of committed steps to n: steps are numbered from 0. */
export function step(n) {
  const r = random(n * 31);
  const stalled = n === 196 || n === 302;
  return {
    attempt: 1, step: n - 1, epoch: n < 196 ? 7 : n < 204 ? 8 : 9, at: iso((stepNow() - n) * STEP_S), loss: 1.4 + 4.1 * Math.exp(-n / 260) + (r() - 0.5) * 0.08, grad_norm: 1 + r(),
    step_time_s: STEP_S + (r() - 0.5) * 0.06 + (stalled ? 0.96 : 0), exchange_s: 0.11 + r() * 0.03, stall_s: stalled ? 0.96 : 0, tokens: 768, contributors: n >= 196 && n < 204 ? 2 : 3, samples_exact: true, hashes_equal: true,
  };
}

export function steps(since = 0) { /* those numbered `since` and later */
  return Array.from({ length: stepNow() - since }, (_, i) => step(since + i + 1)).slice(-2_000);
}

export function timeouts() {
  const given = (section, value_s) => ({ section, value_s, source: "given", samples: 0, longest_s: null, why: "" });
  return [
    given("setup", 600),
    { section: "step", value_s: 5, source: "learned", samples: 212, longest_s: 0.41, why: "" },
    given("checkpointing", 420),
    given("out_of_section", 300),
  ];
}

export function budget(main) {
  const spent = main ? 2 : 0;
  return {
    max_restarts: 1000, restarts_total: spent, restarts_per_window: 30, restarts_in_window: spent, window_s: 3600,
    max_no_progress: 3, no_progress_cycles: 0, rungs: main ? { in_process: 1, replica: 1 } : {}, entries: [],
  };
}

export function checkpoints() {
  return [250, 200, 150, 100, 50].filter((s) => s <= stepNow()).map((s, i) => ({
    id: id("ckp", s), job_id: JOB, attempt: 1, step: s, epoch: 9, path: `/var/holdfast/checkpoints/gpt-tiny-holdfast/step-${s}`, kind: s === 150 ? "emergency" : "interval",
    state: s === 150 ? "corrupt" : ["complete", "verified", "corrupt", "restore_tested", "replicated"][i], state_reason: s === 150 ? "the digest of shard 3 differs from the marker's" : "", bytes: 41_943_040, blocking_s: 0.034, total_s: 0.61,
    started_at: iso((stepNow() - s) * STEP_S + 0.6), committed_at: iso((stepNow() - s) * STEP_S),
  }));
}

export function sample(node, index, at = Date.now()) {
  const t = at / 1000;
  const busy = node < 3;
  const hot = node === 1 && index === 0;
  const wave = Math.sin(t / 17 + node * 2 + index);
  if (node === 4 && index === 1) return { index, present: false, temperature_c: null, power_w: null, utilization_ratio: null, memory_used_bytes: null, sm_clock_mhz: null, risk: null };
  return {
    index, present: true, temperature_c: hot ? 90 + wave * 2 : (busy ? 63 : 33) + wave * 3, power_w: (busy ? 410 : 70) + wave * 22, power_limit_w: 700, utilization_ratio: busy ? 0.9 + wave * 0.07 : 0,
    memory_used_bytes: (busy ? 61 : 0.6) * 2 ** 30, sm_clock_mhz: node === 3 ? null : busy ? 1_755 + wave * 30 : 345, risk: hot ? 0.71 + wave * 0.03 : 0.04 + node * 0.02,
  };
}

/* A fleet above the demo: eight devices a node, all idle. */
export function crowd(count) {
  return Array.from({ length: count }, (_, i) => ({
    id: `node_${String(10_000 + i).padStart(26, "0")}`, name: `gpu-${String(i).padStart(4, "0")}`, state: "ready", state_reason: "", state_since: iso(3_600), connected: true, last_seen_age_s: 0.4,
    agent_version: "0.1.0", segment: `rack-${i >> 4}`, ranks_running: 0, agent_cpu_ratio: 0.004, agent_rss_bytes: 44 * 2 ** 20, not_heard: [], held: false,
    devices: Array.from({ length: 8 }, (_x, index) => ({
      id: `dev_${i}_${index}`, node_id: `node_${String(10_000 + i).padStart(26, "0")}`, index, uuid: `GPU-${i}-${index}`, model: "H100 80GB (simulated)", memory_bytes: 80 * 2 ** 30, driver: "simulated",
      present: true, healthy: true, health_reason: "", risk: 0.04, held_by: null, spare_for: null, live: { index, present: true, temperature_c: 31 + ((i * 7 + index * 3) % 60), power_w: 70, utilization_ratio: 0, memory_used_bytes: 0, sm_clock_mhz: 345, risk: 0.04 },
    })),
  }));
}

export function nodes() {
  return NODE_NAMES.map((name, i) => ({
    id: nodeId(i), name, state: ["ready", "degraded", "ready", "ready", "cordoned"][i], state_reason: i === 1 ? "device 0 runs hot: 91 C for 40 s" : i === 4 ? "cordoned by ana: memory test" : "", state_since: iso(3_600 * (i + 1)),
    connected: true, last_seen_age_s: 0.4, agent_version: "0.1.0", segment: i < 3 ? "block-a" : "", ranks_running: i < 3 ? 2 : 0, agent_cpu_ratio: 0.006, agent_rss_bytes: 44 * 2 ** 20, not_heard: [], held: false,
    devices: [0, 1].map((index) => ({
      id: `${nodeId(i)}/${index}`, node_id: nodeId(i), index, uuid: `GPU-${i}f3c-${index}`, model: "H100 80GB (simulated)", memory_bytes: 80 * 2 ** 30, driver: "simulated",
      present: !(i === 4 && index === 1), healthy: !(i === 1 && index === 0) && !(i === 4 && index === 1), health_reason: i === 1 && index === 0 ? "temperature 91 C, above 85 C" : i === 4 && index === 1 ? "fell off the bus" : "", risk: sample(i, index).risk,
      held_by: i < 3 ? { job_id: JOB, replica: i, rank: index } : null, spare_for: i === 3 ? JOB : null, live: sample(i, index),
    })),
  }));
}

/* Of the second node: what its agent sent and nobody could apply. */
export function deadLetters(i) {
  if (i !== 1) return [];
  const letter = (n, kind, state, reason) => ({
    id: `dlt_${String(n).padStart(26, "0")}`, node_id: nodeId(i), journal_id: "jrn_01", seq: 4_100 + n, kind, size_bytes: 180 + n, reason, tries: 3,
    happened_at: iso(900 - n * 60), first_seen_at: iso(899 - n * 60), last_seen_at: iso(899 - n * 60), state,
  });
  return [
    letter(4, "rank_said step", "waiting", "DataError: bigint out of range"),
    letter(3, "log_marked", "waiting", "DataError: PostgreSQL text fields cannot contain NUL (0x00) bytes"),
    letter(2, "rank_exited", "waiting", "IdentityMismatch: RankRef(job_id='job_01KEXAMPLE', attempt=1, replica=2, incarnation=1, rank=0) was never placed on this node"),
    letter(1, "xid_seen", "replayed", "IdentityMismatch: device 2 is none of this node's"),
  ];
}

export function health() {
  return {
    database: { ok: true, detail: "sqlite, 0.4 ms" }, redis: { ok: true, detail: "0.2 ms" }, sentinel: { ok: true, detail: "term 3", beat_age_s: 0.3 }, worker: { ok: true, detail: "1 worker", beat_age_s: 0.8 },
    agents_connected: 5, agents_total: 5, outbox_pending: 0, outbox_oldest_s: null, mode: "enforce", dead_letters: 3,
  };
}

export function overview() {
  const counts = {};
  for (const row of jobs()) counts[row.state] = (counts[row.state] ?? 0) + 1;
  return {
    now: iso(0), jobs: counts, nodes: { ready: 3, degraded: 1, cordoned: 1 }, devices: { total: 10, healthy: 8, at_risk: 1, lost: 1, busy: 6, spare: 2 }, open_incidents: 2, decisions_last_hour: 5,
    attention: { live: 2, lost: 1, hardware: 1, incidents: incidents().filter((incident) => incident.state !== "resolved" || incident.outcome === "lost") },
    goodput_24h: 0.972, recent_incidents: incidents().slice(0, 5), recent_decisions: decisions(), health: health(),
  };
}
