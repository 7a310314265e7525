"""TP, PP and DP for the devices that are left (S2.6).

Rules of a legal layout: heads % TP = 0 (and KV heads), vocabulary % TP = 0, layers % PP
= 0, TP * PP * CP * DP <= devices. `global_batch % (micro_batch * DP)` is not asked for:
micro-batches are dealt out one by one, unevenly if need be, and weighted by count, so
the global batch stays what the user wrote; DP never exceeds the number of them.
Preference: keep TP and PP and shrink DP (checkpoints load without resharding and a
replica is what it was); only when not even one such replica fits, the layout with the
most devices in use, then the highest TP, then the highest PP. Context and expert
parallelism are kept as they are.
"""

import msgspec

from controlplane.policy.errors import NoLayout
from controlplane.protocol.spec import (
    Parallelism,
    TrainSpec,
    max_contributors,
    micro_batch_count,
    ranks_per_replica,
    replica_count,
)


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`parallelism.dp` is a number. `idle_devices` are left over. `reason` is for people."""

    parallelism: Parallelism
    replicas: int
    idle_devices: int
    reason: str


def plan_layout(spec: TrainSpec, devices: int, *, allow_relayout: bool = True) -> Layout:
    """The layout for `devices` healthy devices. Raises NoLayout with what was missing."""
    asked = spec.parallelism
    wanted, per_replica = replica_count(spec), ranks_per_replica(asked)
    replicas = min(wanted, devices // per_replica, _busy_limit(spec))
    if replicas >= max(1, spec.resources.min_replicas):
        return _layout(asked, asked.tp, asked.pp, replicas, devices, _same_reason(replicas, wanted))
    if not allow_relayout:
        raise NoLayout(
            f"{devices} devices hold {replicas} replicas of {per_replica}, {spec.resources.min_replicas} are needed"
            " and the job does not allow another layout"
        )
    best = max(_candidates(spec, devices), default=None)
    if best is None:
        raise NoLayout(
            f"no TP x PP fits {devices} devices and {spec.resources.min_replicas} replicas"
            f" ({spec.model.heads} heads, {spec.model.layers} layers)"
        )
    _, tp, pp, replicas = best
    reason = (
        f"re-planned from TP{asked.tp} x PP{asked.pp} to TP{tp} x PP{pp}, {replicas} replicas, for {devices} devices"
    )
    return _layout(asked, tp, pp, replicas, devices, reason)


def fits(spec: TrainSpec, tp: int, pp: int) -> bool:
    """Whether the model divides by TP and PP."""
    model = spec.model
    kv_heads = model.kv_heads or model.heads
    return model.heads % tp == 0 and kv_heads % tp == 0 and model.vocab_size % tp == 0 and model.layers % pp == 0


def _busy_limit(spec: TrainSpec) -> int:
    """Replicas that a global batch has work for; those that stand by need none."""
    return micro_batch_count(spec) if max_contributors(spec) is None else replica_count(spec)


def _candidates(spec: TrainSpec, devices: int) -> list[tuple[int, int, int, int]]:
    """(devices used, tp, pp, replicas) of every legal smaller layout."""
    asked, model = spec.parallelism, spec.model
    limit = _busy_limit(spec)
    found = []
    for tp in range(1, min(model.heads, devices) + 1):
        for pp in range(1, min(model.layers, devices // tp) + 1):
            size = tp * pp * asked.cp
            replicas = min(replica_count(spec), devices // size, limit)
            if fits(spec, tp, pp) and replicas >= max(1, spec.resources.min_replicas):
                found.append((size * replicas, tp, pp, replicas))
    return found


def _layout(asked: Parallelism, tp: int, pp: int, replicas: int, devices: int, reason: str) -> Layout:
    parallelism = msgspec.structs.replace(asked, tp=tp, pp=pp, dp=replicas)
    used = ranks_per_replica(parallelism) * replicas
    return Layout(parallelism=parallelism, replicas=replicas, idle_devices=devices - used, reason=reason)


def _same_reason(replicas: int, wanted: int) -> str:
    return "as asked for" if replicas == wanted else f"TP and PP kept, {replicas} of {wanted} replicas"
