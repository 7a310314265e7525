/* Fixtures of the development server: one fleet with a rich job, an incident in each state, a
   thousand jobs. Times are relative to `now`, so that ages look alive. Never part of the bundle. */

export const T0 = Date.now();
export const iso = (secondsAgo, base = Date.now()) => new Date(base - secondsAgo * 1000).toISOString();
const ulid = (n) => String(n).padStart(26, "0");
export const id = (prefix, n) => `${prefix}_${ulid(n)}`;

/* A small seeded generator: the same page each time (mulberry32). */
export function random(seed) {
  let a = seed;
  return () => {
    a = (a + 0x6d2b79f5) | 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const JOB = id("job", 1);
const NODE_NAMES = ["node-a", "node-b", "node-c", "node-d", "node-e"];
const nodeId = (i) => id("node", i + 1);

function command(n, node, kind, state, ago, epoch, detail = "") {
  const waits = { queued: 0, delivered: 1, acknowledged: 2, succeeded: 3, failed: 3, expired: 0, superseded: 0 }[state];
  return {
    id: id("cmd", n), node_id: nodeId(node), node_name: NODE_NAMES[node], kind, state, epoch, detail,
    created_at: iso(ago), delivered_at: waits > 0 ? iso(ago - 0.012) : null,
    acknowledged_at: waits > 1 ? iso(ago - 0.021) : null, finished_at: waits > 2 ? iso(ago - 0.18) : null, deliveries: waits > 0 ? 1 : 0,
  };
}

function decision(n, over) {
  return {
    id: id("dec", n), job_id: JOB, incident_id: null, at: iso(60), rule: "liveness", choice: "evict_replica", reason_code: "rank_exited",
    sentence: "", evidence: {}, alternatives: [], actions: [], cost_gpu_s: null, routine: false, mode: "enforce", applied: true,
    epoch_before: 7, epoch_after: 7, policy_version: "2026.11-3f2a", decide_s: 0.0031, commands: [], ...over,
  };
}

function certificate(state) {
  const ok = state === "pending" ? null : true;
  return {
    state, step: 214, generated_at: state === "pending" ? null : iso(380),
    checks: [
      { name: "state_hashes_equal", ok: true, detail: "all 3 replicas hold the same parameters, by hash of each shard", value: "3 of 3", limit: null },
      { name: "sample_ledger_exact", ok: true, detail: "each of the 12 micro-batches of steps 196..214 was counted once", value: 228, limit: 228 },
      { name: "loss_matches_reference", ok: state === "red" ? false : ok, detail: "against the undisturbed run of the same seed", value: state === "red" ? 0.0042 : 1.2e-7, limit: 1e-5 },
      { name: "no_step_lost", ok: true, detail: "steps 1..214 are committed once each", value: 0, limit: 0 },
      { name: "old_incarnation_fenced", ok, detail: "incarnation 1 of replica 1 was proved gone before its successor joined", value: null, limit: null },
    ],
  };
}

const PHASES = [["detect", 0.42], ["decide", 0.45], ["view", 0.61], ["resume", 1.38], ["respawn", 4.9], ["catch_up", 9.7]];
const phases = (openedAgo, upTo) => PHASES.slice(0, upTo).map(([name, s]) => ({ name, at: iso(openedAgo - s), since_fault_s: s }));

const alternatives = [
  { action: "evict_replica", cost_gpu_s: 8.4, why_not: "" },
  { action: "restart_attempt", cost_gpu_s: 214.0, why_not: "all 6 ranks would restart and repeat 14 steps since the checkpoint" },
  { action: "wait", cost_gpu_s: 3600.0, why_not: "the process is gone and cannot come back" },
  { action: "promote_spare", cost_gpu_s: null, why_not: "no hot spare is reserved for this job" },
];

const signal = (n, kind, over = {}) => ({
  id: id("sig", n), kind, job_id: JOB, node_id: nodeId(1), node_name: "node-b", replica: 1, incarnation: 1, rank: 0, device_index: 0,
  value: 9, threshold: null, evidence: { exit_signal: 9, pid: 41377 }, seen_at: iso(420.1), settled_at: iso(419), ...over,
});

function evictDecision(n, incident, ago) {
  return decision(n, {
    incident_id: incident, at: iso(ago), choice: "evict_replica", cost_gpu_s: 8.4, epoch_before: 7, epoch_after: 8,
    sentence: "Rank 0 of replica 1 on node-b was killed by signal 9; replica 1 is left out of the view so that the other two go on within the same step, and a new incarnation is started on the same devices.",
    evidence: { exit_signal: 9, last_section: "step", last_phase: "compute", committed_step: 195, replicas_active: 3, min_replicas: 1, free_devices: 2, silence_s: 0.42, own_side_healthy: true },
    alternatives,
    actions: [
      { action: "announce_view", view: { epoch: 8, members: [{ replica: 0 }, { replica: 2 }] } },
      { action: "stop_replica", replica: 1, incarnation: 1, grace_s: 0 },
      { action: "start_replica", replica: 1, incarnation: 2, placements: [{ node: "node-b", device: 0 }, { node: "node-b", device: 1 }] },
      { action: "settle_signals", signal_ids: [id("sig", 1)] },
    ],
    commands: [
      command(n * 10 + 1, 0, "deliver_view", "succeeded", ago, 8), command(n * 10 + 2, 2, "deliver_view", "succeeded", ago, 8),
      command(n * 10 + 3, 1, "stop_ranks", "succeeded", ago, 8, "2 processes proved gone"), command(n * 10 + 4, 1, "start_ranks", "succeeded", ago, 8),
    ],
  });
}

export const STACK = `Thread 41377 (idle): "MainThread"
    poll (torch/distributed/distributed_c10d.py:4021)
    wait_outer (trainer/replica/allreduce.py:118)
    exchange (trainer/replica/allreduce.py:74)
    finalize_model_grads (trainer/loop.py:161)
    train_step (trainer/loop.py:92)
    main (trainer/rank.py:58)`;

export function incidents() {
  const base = {
    stall_s: 0.77, job_id: JOB, job_name: "gpt-tiny-holdfast", node_id: nodeId(1), node_name: "node-b", recovered_at: null, recovery_s: null, outcome: "", resolution: "",
    needs_hardware: false, acknowledged_at: null, acknowledged_by: "", acknowledgement: "",
  };
  return [
    { ...base, id: id("inc", 3), title: "Device 0 of node-b is overheating", state: "open", opened_at: iso(14), resolved_at: null, phases: phases(14, 1), certificate: null },
    { ...base, id: id("inc", 2), title: "Rank 1 of replica 1 hung in its step", state: "recovering", opened_at: iso(44), resolved_at: null, phases: phases(44, 4), certificate: certificate("pending") },
    { ...base, id: id("inc", 1), title: "Rank 0 of replica 1 was killed (SIGKILL)", state: "resolved", opened_at: iso(420), resolved_at: iso(410), recovered_at: iso(410), recovery_s: 9.7, outcome: "recovered", resolution: "Full strength again after 9.7 s; two replicas never stopped; no step was lost.", phases: phases(420, 6), certificate: certificate("green") },
    { ...base, id: id("inc", 4), title: "Checkpoint at step 150 was corrupt", state: "resolved", opened_at: iso(7200), resolved_at: iso(7100), recovered_at: iso(7100), recovery_s: 100.2, outcome: "mitigated", resolution: "Resumed from step 100.", phases: phases(7200, 6), certificate: certificate("red") },
    { ...base, id: id("inc", 5), job_id: null, job_name: null, title: "node-e lost its link", state: "resolved", opened_at: iso(90_000), resolved_at: iso(89_800), outcome: "recovered", resolution: "The node came back; its ranks had gone on.", phases: [], certificate: null },
    { ...base, id: id("inc", 6), job_id: null, job_name: null, node_id: nodeId(4), node_name: "node-e", title: "XID 79 on device 1 of node-e", state: "mitigated", opened_at: iso(900), resolved_at: null, needs_hardware: true, phases: phases(900, 3), certificate: null },
    { ...base, id: id("inc", 7), job_id: id("job", 7), job_name: "will-fail", title: "Rank 0 of replica 0 on node-b ended with code 70", state: "resolved", opened_at: iso(2400), resolved_at: iso(2399), outcome: "lost", resolution: "The job fails: its restart budget is spent.", phases: phases(2400, 3), certificate: null },
  ];
}

export function decisions() {
  return [
    decision(5, { at: iso(13), incident_id: id("inc", 3), rule: "risk", choice: "request_checkpoint", reason_code: "risk_above_threshold", sentence: "Risk of device 0 on node-b is 0.71, above 0.30 for 30 s: a checkpoint is asked for now, before anything fails.", evidence: { risk: 0.71, threshold: 0.3, temperature_c: 92, since_checkpoint_s: 41 }, alternatives: [{ action: "evict_replica", cost_gpu_s: 12.1, why_not: "the device still works" }, { action: "wait", cost_gpu_s: 96.0, why_not: "41 s of work would be at risk" }], cost_gpu_s: 1.9, actions: [{ action: "request_checkpoint", kind: "emergency" }], commands: [command(51, 0, "request_save", "acknowledged", 13, 8), command(52, 1, "request_save", "delivered", 13, 8), command(53, 2, "request_save", "queued", 13, 8)] }),
    { ...evictDecision(4, id("inc", 2), 43), rule: "section_timeout", reason_code: "rank_hung" },
    decision(3, { at: iso(411), incident_id: id("inc", 1), rule: "membership", choice: "admit_joiner", reason_code: "all_ranks_ready", routine: true, sentence: "Replica 1 has caught up at step 203; it contributes from the next step.", epoch_before: 8, epoch_after: 9, commands: [command(31, 0, "deliver_view", "succeeded", 411, 9), command(32, 1, "deliver_view", "succeeded", 411, 9)] }),
    decision(2, { at: iso(419.2), incident_id: id("inc", 1), rule: "membership", choice: "send_install", reason_code: "everybody_flushed", routine: true, sentence: "Both members have flushed at step 195; training continues at step 196.", epoch_before: 8, epoch_after: 8, commands: [command(21, 0, "deliver_install", "succeeded", 419.2, 8)] }),
    evictDecision(1, id("inc", 1), 419.6),
  ];
}

const KINDS = [["rank.exited", "Rank 0 of replica 1 was killed by signal 9", "rank"], ["incident.opened", "Incident opened: rank 0 of replica 1 was killed", "incident"], ["decision.made", "Replica 1 is left out of the view", "decision"], ["view.announced", "View 8 has replicas 0 and 2", "job"], ["view.installed", "Training continues at step 196", "job"], ["replica.started", "Incarnation 2 of replica 1 started on node-b", "replica"], ["replica.caught_up", "Replica 1 replayed 7 steps and contributes from step 204", "replica"], ["incident.resolved", "Full strength again", "incident"], ["checkpoint.complete", "Checkpoint at step 200 is complete", "checkpoint"]];

export function events(count = 40) {
  return Array.from({ length: count }, (_, i) => {
    const [kind, sentence, entity] = KINDS[i % KINDS.length];
    return { seq: 100 + i, at: iso(420 - i * 9), kind, sentence, job_id: JOB, job_seq: i + 1, node_id: nodeId(1), entity, entity_id: id("evt", i), patch: null, data: {} };
  });
}

export { JOB, NODE_NAMES, nodeId, signal, command, certificate };
