"""A device is likely to fail: save now, if that is worth it, and once.

A save is cheap against the work at risk, so its bar is low (break-even precision of a
half-second save is under one percent, goals.md). Moving a replica away is dear, so its
bar is the measured precision of the alarm against the break-even of an eviction; with
precision unknown it never happens.
"""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.disruption import saves_held
from controlplane.policy.facts import (
    attempt_live,
    installed,
    is_spread,
    live_replicas,
    node_name,
    on_replica,
    signals_of,
)
from controlplane.policy.goodput import break_even_precision
from controlplane.policy.plan import Alternative, Decision, RequestCheckpoint, Scalar, SettleSignals
from controlplane.policy.prices import at_risk_s, measured_at_risk_s
from controlplane.policy.snapshot import JobSnapshot, SignalFact

RULE = "device_risk"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One save for all alarms of a pass; for each alarm a reason if it is refused."""
    if not attempt_live(snapshot) or not installed(snapshot) or snapshot.job.finished:
        return ()
    alarms = tuple(
        signal
        for signal in signals_of(snapshot, "device_risk")
        if any(on_replica(signal, replica) for replica in live_replicas(snapshot))
    )
    if not alarms:
        return ()
    refusal = refuse(snapshot, config)
    if refusal is None:
        return (_save(snapshot, config, alarms),)
    code, why = refusal
    return tuple(_skip(snapshot, signal, code, why) for signal in alarms)


def refuse(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[str, str] | None:
    """(code, sentence) why no emergency save is asked for now; None: go."""
    saves, settings, now_s = snapshot.saves, snapshot.job.spec.checkpoint.emergency, snapshot.now_s
    if saves.in_progress:
        return "save_in_progress", "a save is being written already"
    if saves.last_emergency_s is not None and now_s - saves.last_emergency_s < settings.cooldown_s:
        return "cooldown", f"the last emergency save was {now_s - saves.last_emergency_s:.0f} s ago"
    gap_s, least_s = gap_since_save_s(snapshot), settings.min_gap_ratio * (saves.interval_s or 0.0)
    if gap_s < least_s:
        return "gap_filter", f"only {gap_s:.0f} s of work since the last save, {least_s:.0f} s are asked for"
    limit = max(config.correlated_min_devices, config.emergency_fleet_fraction * snapshot.fleet_devices)
    # What one node or one failure domain takes along is one event, and is no alarm of a sensor.
    if snapshot.suspect_devices > limit and is_spread(snapshot, config):
        share = f"{snapshot.suspect_devices} of {snapshot.fleet_devices}"
        return "fleet_cap", f"{share} devices look bad at once, so each finding is doubted"
    if why := saves_held(snapshot, config):
        return "saves_held", f"the disruption budget holds them: {why}"
    return None


def gap_since_save_s(snapshot: JobSnapshot) -> float:
    """Seconds since the last committed save, or since the attempt began."""
    attempt = snapshot.attempt
    base_s = snapshot.saves.last_committed_s
    if base_s is None:
        base_s = attempt.started_s if attempt else snapshot.now_s
    return snapshot.now_s - base_s


def _save(snapshot: JobSnapshot, config: PolicyConfig, alarms: tuple[SignalFact, ...]) -> Decision:
    worst = max(alarms, key=lambda signal: (signal.value, signal.id))
    where = f"Device {worst.device_index} of {node_name(snapshot, worst.node_id)}"
    ids = tuple(sorted(signal.id for signal in alarms))
    gpus = sum(replica.world_size for replica in live_replicas(snapshot))
    save_s = snapshot.learned.save_s or config.default_save_s
    return Decision(
        rule=RULE,
        choice="save",
        reason_code="risk_above_threshold",
        sentence=f"{where} scores {worst.value:.2f} (limit {worst.threshold:.2f}): an emergency save is asked for.",
        key=f"risk_save:{worst.id}",
        actions=(RequestCheckpoint(kind="emergency"), SettleSignals(signal_ids=ids)),
        evidence={
            "score": worst.value,
            "threshold": worst.threshold,
            "alarms": len(alarms),
            "work_at_risk_s": measured_at_risk_s(snapshot),
            **parts_of(worst),
        },
        alternatives=(_evict_instead(snapshot, config, gpus), _do_nothing(snapshot, config, gpus)),
        signal_ids=ids,
        cost_gpu_s=save_s * gpus,
        title=f"{where} is at risk",
    )


def parts_of(signal: SignalFact) -> dict[str, Scalar]:
    """What the score is made of, as the detector told it."""
    return {name: share for name, share in signal.evidence.items() if name.startswith("part_")}


def _evict_instead(snapshot: JobSnapshot, config: PolicyConfig, gpus: int) -> Alternative:
    """A planned move against an unplanned loss: pays from the break-even precision on."""
    planned_s = snapshot.learned.catch_up_s or config.default_catch_up_s
    unplanned_s = planned_s + config.default_detect_s + (snapshot.learned.start_replica_s or config.default_start_s)
    bar = break_even_precision(planned_s, unplanned_s - planned_s)
    known = f"{config.risk_precision:.0%} of such alarms came true" if config.risk_precision else "precision is unknown"
    return Alternative(action="evict", cost_gpu_s=planned_s * gpus, why_not=f"{known}, it pays from {bar:.0%}")


def _do_nothing(snapshot: JobSnapshot, config: PolicyConfig, gpus: int) -> Alternative:
    """What it costs depends on how many alarms come true: where that is not known the constraint
    is the share from which the save pays."""
    risked_s, save_s = at_risk_s(snapshot, config), snapshot.learned.save_s or config.default_save_s
    bar = break_even_precision(save_s, risked_s)
    if not config.risk_precision:
        known = "how many such alarms come true is not known"
        return Alternative(action="nothing", cost_gpu_s=None, why_not=f"{known}; the save pays from {bar:.1%}")
    lost_s = config.risk_precision * risked_s
    dearer = lost_s > save_s
    why_not = "costs more" if dearer else f"a save is asked for at this score; it pays from {bar:.1%}"
    return Alternative(action="nothing", cost_gpu_s=lost_s * gpus, why_not=why_not)


def _skip(snapshot: JobSnapshot, signal: SignalFact, code: str, why: str) -> Decision:
    where = f"Device {signal.device_index} of {node_name(snapshot, signal.node_id)}"
    return Decision(
        rule=RULE,
        choice="skip",
        reason_code=code,
        sentence=f"{where} scores {signal.value:.2f}, but no emergency save: {why}.",
        key=f"risk_skip:{signal.id}",
        actions=(),
        evidence={"score": signal.value, "threshold": signal.threshold, **parts_of(signal)},
        signal_ids=(signal.id,),
    )
