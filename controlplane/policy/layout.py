"""TP, PP and DP for the devices that are left (S2.6).

A layout is legal when `protocol.layout_checks` finds nothing wrong with it and its ranks
fit the devices. `global_batch % (micro_batch * DP)` is not asked for: micro-batches are
dealt out one by one, unevenly if need be, and weighted by count, so the global batch stays
what the user wrote; data-parallel ranks never outnumber the micro-batches.

Preference: keep TP and PP and shrink DP, first the number of replicas, then the data
parallelism inside one (checkpoints load without resharding and a stage is what it was);
only when not even that fits, the layout with the most devices in use, then the highest TP,
then the highest PP. What hangs on these follows: virtual stages are given up where they do
not divide the layers, experts are spread over as many ranks as still divide them,
sequence parallelism goes with TP, and the distributed optimizer with the last data-parallel
rank to share with. Context parallelism is kept as it is. A layout whose estimate
(`policy.memory`) is above the smallest device's memory is left out, where that is known;
what the user asked for is not.
"""

import math

import msgspec

from controlplane.policy.errors import NoLayout
from controlplane.policy.memory import device_bytes
from controlplane.protocol.layout_checks import layout_faults
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


def plan_layout(
    spec: TrainSpec, devices: int, *, allow_relayout: bool = True, memory_bytes: int | None = None
) -> Layout:
    """The layout for `devices` healthy devices of `memory_bytes` each (None: not known).
    Raises NoLayout with what was missing."""
    asked = spec.parallelism
    wanted, per_replica = replica_count(spec), ranks_per_replica(asked)
    replicas = _replicas(spec, asked, devices)
    if replicas >= max(1, spec.resources.min_replicas):
        return _layout(asked, replicas, devices, _same_reason(replicas, wanted))
    if not allow_relayout:
        raise NoLayout(
            f"{devices} devices hold {replicas} replicas of {per_replica}, {spec.resources.min_replicas} are needed"
            " and the job does not allow another layout"
        )
    found = _candidates(spec, devices)
    if not found:
        raise NoLayout(
            f"no TP x PP fits {devices} devices and {spec.resources.min_replicas} replicas"
            f" ({spec.model.heads} heads, {spec.model.layers} layers)"
        )
    fitting = [(layout, count) for layout, count in found if _needs(spec, layout) <= (memory_bytes or math.inf)]
    if not fitting:
        least = min(_needs(spec, layout) for layout, _ in found)
        raise NoLayout(
            f"no TP x PP for {devices} devices fits their memory: the smallest has {(memory_bytes or 0) / 1e9:.1f} GB,"
            f" an estimated {least / 1e9:.1f} GB are needed on each"
        )
    best, replicas = max(fitting, key=lambda candidate: _merit(asked, *candidate))
    reason = f"re-planned from {_name(asked)} to {_name(best)}, {replicas} replicas, for {devices} devices"
    return _layout(best, replicas, devices, reason)


def _merit(asked: Parallelism, layout: Parallelism, replicas: int) -> tuple[bool, int, int, int, int]:
    kept = (layout.tp, layout.pp) == (asked.tp, asked.pp)
    return kept, ranks_per_replica(layout) * replicas, layout.tp, layout.pp, layout.replica_dp


def _needs(spec: TrainSpec, layout: Parallelism) -> int:
    return device_bytes(spec.model, layout, spec.training)


def _candidates(spec: TrainSpec, devices: int) -> list[tuple[Parallelism, int]]:
    """Every legal smaller layout, with its replicas."""
    asked, model = spec.parallelism, spec.model
    found = []
    for tp in _divisors(model.heads):
        for pp in _divisors(model.layers):
            for inner in _divisors(asked.replica_dp):
                if tp * pp * inner * asked.cp > devices:
                    continue
                layout = _adapted(spec, tp, pp, inner)
                replicas = _replicas(spec, layout, devices)
                if replicas >= max(1, spec.resources.min_replicas) and _legal(spec, layout):
                    found.append((layout, replicas))
    return found


def _adapted(spec: TrainSpec, tp: int, pp: int, inner: int) -> Parallelism:
    """What hangs on TP, PP and the data parallelism inside a replica, made to fit them."""
    asked, model = spec.parallelism, spec.model
    spread = [ep for ep in range(1, asked.ep + 1) if model.experts % ep == 0 and inner * asked.cp % ep == 0]
    return msgspec.structs.replace(
        asked,
        tp=tp,
        pp=pp,
        vp=asked.vp if pp > 1 and model.layers % (pp * asked.vp) == 0 else 1,
        ep=max(spread),
        replica_dp=inner,
        sequence_parallel=tp > 1 and (asked.sequence_parallel or model.family == "moe"),
        distributed_optimizer=asked.distributed_optimizer and (spec.entrypoint is not None or inner * asked.cp > 1),
    )


def _legal(spec: TrainSpec, layout: Parallelism) -> bool:
    return not any(layout_faults(layout, spec.model, spec.training, built_in=spec.entrypoint is None))


def _replicas(spec: TrainSpec, layout: Parallelism, devices: int) -> int:
    """How many replicas of `layout` there can be, no more than asked for. Those that compute
    need work of the global batch, those that stand by need none."""
    busy = micro_batch_count(spec) // layout.replica_dp if max_contributors(spec) is None else replica_count(spec)
    return min(replica_count(spec), devices // ranks_per_replica(layout), busy)


def _layout(layout: Parallelism, replicas: int, devices: int, reason: str) -> Layout:
    parallelism = msgspec.structs.replace(layout, dp=replicas)
    used = ranks_per_replica(parallelism) * replicas
    return Layout(parallelism=parallelism, replicas=replicas, idle_devices=devices - used, reason=reason)


def _name(layout: Parallelism) -> str:
    """`TP2 x PP2`, and the data parallelism inside a replica where there is any."""
    inner = f" x DP{layout.replica_dp}" if layout.replica_dp > 1 else ""
    return f"TP{layout.tp} x PP{layout.pp}{inner}"


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _same_reason(replicas: int, wanted: int) -> str:
    return "as asked for" if replicas == wanted else f"TP and PP kept, {replicas} of {wanted} replicas"
