"""Which recorded decisions can be continued in the simulator, and what it has to know for that.

A case is read from the snapshot of a decision: the job at full strength, what had failed of it, and its times. What a
simulated world cannot be brought to gets a reason instead, and no figure. Pure: `recovery.replay` asks it for each
difference between two policies, and `simulator.continued` plays the case.
"""

from collections.abc import Iterable

from controlplane.policy.budget import spent
from controlplane.policy.checkpoints import newest_trusted
from controlplane.policy.config import PolicyConfig
from controlplane.policy.failures import every_failure
from controlplane.policy.plan import Decision
from controlplane.policy.proved import Failure
from controlplane.policy.rules import leave_out, replica_failure, restart
from controlplane.policy.snapshot import DeviceFact, JobSnapshot, NodeFact
from controlplane.protocol.rest.policy import ReplayCase
from controlplane.protocol.states import Mode, NodeState

RULES = frozenset({replica_failure.RULE, restart.RULE, leave_out.RULE})
KINDS = {"rank_exit": "crash", "hang": "hang", "node_silent": "silent"}
"""Kinds of failure that a world can be given, and what is done to it."""
MAX_REPLICAS = 32
MAX_GAP_STEPS = 1000
MIN_STEP_S = 0.1
WAITS = "a person is asked, and nobody knows for how long"


def is_act(decision: Decision | None) -> bool:
    """Something of it is carried out."""
    return decision is not None and decision.mode is Mode.ENFORCE and bool(decision.actions)


def same_act(before: Decision | None, after: Decision | None) -> bool:
    """Neither acts, or both do the same to the same replicas; words and prices may differ."""
    if before is None or after is None:
        return not is_act(before) and not is_act(after)
    if is_act(before) != is_act(after):
        return False
    return not is_act(before) or (before.rule, before.choice) == (after.rule, after.choice)


def case_of(
    snapshot: JobSnapshot, own: PolicyConfig, recorded: Decision | None, after: Decision | None
) -> ReplayCase | str:
    """What a world needs to come to the decision `recorded` and to go on from there by `own`, or by the policy that
    decides `after` (None: nothing about it) in its place; or why there is no such world."""
    failures = every_failure(snapshot, own)
    reason = _why_not(snapshot, recorded, after) or _why_no_world(snapshot, failures)
    if reason:
        return reason
    spec, learned, attempt, step_s = snapshot.job.spec, snapshot.learned, snapshot.attempt, snapshot.learned.step_s
    assert recorded is not None, "asked of a decision"
    assert attempt is not None, "failures are of an attempt's replicas"
    assert step_s is not None, "there is no case without it"
    ranks = snapshot.replicas[0].world_size
    checkpoint = newest_trusted(snapshot.checkpoints)
    begun = checkpoint.step if checkpoint is not None else 0
    silent_s = [s for f in failures if isinstance(s := f.evidence.get("silent_s"), (int, float))]
    return ReplayCase(
        rule=recorded.rule,
        choice=recorded.choice,
        then_rule=after.rule if after is not None else "",
        then_choice=after.choice if after is not None else "",
        failed={str(f.replica.index): KINDS[f.kind] for f in failures},
        silent_s=max(silent_s, default=0.0),
        replicas=attempt.replicas,
        ranks=ranks,
        places=_places(snapshot, ranks),
        spares_kept=any(node.reserved_for == snapshot.job.id for node in snapshot.nodes),
        needed=max(1, spec.resources.min_replicas),
        share=max(1, spec.training.global_batch // (spec.training.micro_batch * attempt.replicas)),
        step_s=step_s,
        start_s=learned.start_replica_s or own.default_start_s,
        catch_up_s=learned.catch_up_s or own.default_catch_up_s,
        measured=learned.start_replica_s is not None and learned.catch_up_s is not None,
        gap_steps=snapshot.job.committed_step - begun,
        interval_steps=spec.checkpoint.interval_steps,
        steps_left=spec.training.steps - snapshot.job.committed_step,
        budget_spent=bool(spent(snapshot)),
        fleet_devices=snapshot.fleet_devices,
        acts=snapshot.acts_last_window,
    )


def answer_among(decisions: Iterable[Decision]) -> Decision | None:
    """The one of them that answers a failure; None: none does."""
    return next((each for each in decisions if each.rule in RULES), None)


def _why_not(snapshot: JobSnapshot, recorded: Decision | None, after: Decision | None) -> str:
    """The two decisions leave nothing to continue; "" where they do."""
    for made in (recorded, after):
        if made is not None and (made.mode is not Mode.ENFORCE or made.choice == "hold"):
            return WAITS
    if recorded is None or recorded.rule not in RULES:
        rule = recorded.rule if recorded is not None else "nothing"
        return f"what {rule} answers is not simulated"
    return f"what {after.rule} does is not simulated" if after is not None and after.rule not in RULES else ""


def _why_no_world(snapshot: JobSnapshot, failures: tuple[Failure, ...]) -> str:
    """No world comes to this state; "" where one does."""
    attempt, learned, spec = snapshot.attempt, snapshot.learned, snapshot.job.spec
    failed = {failure.replica.index for failure in failures}
    strange = sorted({failure.kind for failure in failures} - KINDS.keys())
    others = [replica for replica in snapshot.live if replica.index not in failed]
    checkpoint = newest_trusted(snapshot.checkpoints)
    gap = snapshot.job.committed_step - (checkpoint.step if checkpoint is not None else 0)
    lost = [f.replica.node_ids for f in failures if f.kind == "node_silent"]
    shared = {n for nodes in lost for n in nodes} & {n for r in others for n in r.node_ids}
    checks = (
        (attempt is None or not failures, "no failure is known in its snapshot"),
        (bool(strange), f"no such failure is simulated: {', '.join(strange)}"),
        (spec.training.batch_mode != "redistribute", "replicas that stand by are not simulated here"),
        (attempt is not None and not 0 < attempt.replicas <= MAX_REPLICAS, f"more than {MAX_REPLICAS} replicas"),
        (attempt is not None and len(snapshot.live) < attempt.replicas, "replicas were away before"),
        (any(not (r.in_view and r.contributing) for r in others), "replicas were on their way back"),
        (bool(shared) or len({n for nodes in lost for n in nodes}) > 1, "several replicas or nodes in one silence"),
        (learned.step_s is None, "a step of the job is not measured yet"),
        (learned.step_s is not None and learned.step_s < MIN_STEP_S, f"steps shorter than {MIN_STEP_S} s"),
        (not 0 <= gap <= MAX_GAP_STEPS, f"more than {MAX_GAP_STEPS} steps since the checkpoint"),
        (spec.training.steps <= snapshot.job.committed_step, "the job has no step left"),
    )
    return next((reason for holds, reason in checks if holds), "")


def _places(snapshot: JobSnapshot, ranks: int) -> int | None:
    """For so many replicas more there were free devices; None: it was not recorded, as nobody asked."""
    known = snapshot.elsewhere
    if known is not None and not known.needs:
        return None
    here = sum(
        sum((device.free or _spare(snapshot, node, device)) and device.healthy for device in node.devices) // ranks
        for node in snapshot.nodes
        if node.state is NodeState.READY and node.connected and not node.unhealthy
        and node.reserved_for in (None, snapshot.job.id)
    )  # fmt: skip
    elsewhere = sum(known.free_devices.values()) // ranks if known is not None else 0
    return min(MAX_REPLICAS, here + elsewhere)


def _spare(snapshot: JobSnapshot, node: NodeFact, device: DeviceFact) -> bool:
    return node.reserved_for == snapshot.job.id and not device.held
