"""Checks of a job spec that span fields. Each reads a well-typed spec and yields faults.

`CHECKS` pairs each check with the pointers it reads: a check runs only when none of
those is faulty itself, so one mistake is told once. A check reads no more than its one
sentence needs: what it reads besides would hide its fault behind another.
"""

import difflib
from collections.abc import Iterator

from controlplane.protocol.bounds import MAX_MICRO_BATCHES
from controlplane.protocol.launch_checks import (
    check_launcher,
    check_nccl_environment,
    check_nccl_watchdog,
    check_own_replicas,
    check_watchdog,
)
from controlplane.protocol.layout_checks import BUILT_IN_RULES, SHAPE_RULES, Rule, Rules
from controlplane.protocol.presets import PRESETS
from controlplane.protocol.resiliency_checks import (
    check_act_after,
    check_fault_kind,
    check_fault_replicas,
    check_fault_target,
    check_faults_allowed,
    check_log_markers,
    check_look_interval,
    check_look_ranks,
    check_rerun_checks,
    check_rerun_program,
    check_spikes,
    check_stragglers,
    straggler_threshold,
)
from controlplane.protocol.spec import (
    TrainSpec,
    max_contributors,
    micro_batch_count,
    ranks_per_replica,
    replica_count,
)
from controlplane.protocol.spec_fault import Check, Fault, Ground
from controlplane.protocol.spec_limits import RESERVED_ENV_PREFIX, SEALED_MARK
from controlplane.protocol.storage_checks import (
    absolute,
    check_checkpoint_dir,
    check_local_copies,
    check_local_dir,
    check_local_interval,
    check_local_program,
    check_restore_test,
)

_LAYOUT = (
    "/spec/parallelism/tp",
    "/spec/parallelism/pp",
    "/spec/parallelism/cp",
    "/spec/parallelism/replica_dp",
)
_DEVICES = ("/spec/resources/nodes", "/spec/resources/gpus_per_node")
_BATCH = ("/spec/training/global_batch", "/spec/training/micro_batch")


def check_devices(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """The ranks of all replicas must be the devices asked for, and a replica must fit nodes whole."""
    devices = spec.resources.nodes * spec.resources.gpus_per_node
    per_replica, gpus = ranks_per_replica(spec.parallelism), spec.resources.gpus_per_node
    sum_of = f"tp x pp x cp x replica_dp = {per_replica}"
    if devices < per_replica:
        yield Fault(
            "/spec/resources/nodes",
            f"{devices} devices (nodes x gpus_per_node) cannot hold one replica of {sum_of}",
            f"ask for at least {-(-per_replica // gpus)} nodes of {gpus}, or lower tp or pp",
        )
    dp = spec.parallelism.dp
    if dp == "auto" and devices > per_replica and devices % per_replica:
        yield Fault(
            "/spec/parallelism",
            f"{sum_of} does not divide {devices} devices: {devices % per_replica} would stay idle",
            "choose tp, pp and replica_dp so that their product divides nodes x gpus_per_node, or set dp",
        )
    if dp != "auto" and dp * per_replica != devices:
        yield Fault(
            "/spec/parallelism/dp",
            f"tp x pp x cp x replica_dp x dp = {dp * per_replica}, but nodes x gpus_per_node = {devices}",
            f'set dp to {max(1, devices // per_replica)} or "auto", or change nodes',
        )
    if per_replica % gpus and gpus % per_replica:
        yield Fault(
            "/spec/resources/gpus_per_node",
            f"a replica of {per_replica} ranks neither fills whole nodes of {gpus} nor shares one evenly",
            "choose gpus_per_node so that it divides tp x pp x cp x replica_dp, or the other way round",
        )


def check_replicas(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """There must be enough replicas to lose some."""
    replicas = replica_count(spec)
    if spec.resources.min_replicas > max(replicas, 1):
        yield Fault(
            "/spec/resources/min_replicas",
            f"min_replicas = {spec.resources.min_replicas}, but the job has {replicas} replicas",
            f"set it to {max(replicas, 1)} or less",
        )


def check_shares(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Each replica needs work. (min_replicas counts only where it bounds who computes; where it
    is faulty its default, 1, asks for nothing here.)"""
    replicas = replica_count(spec)
    if spec.training.global_batch % spec.training.micro_batch:
        return
    inner = spec.parallelism.replica_dp
    computing = min(replicas, max_contributors(spec) or replicas)
    if computing > 1 and 0 < micro_batch_count(spec) < computing * inner:
        each = f" of {inner} data-parallel ranks" if inner > 1 else ""
        yield Fault(
            "/spec/training/global_batch",
            f"{micro_batch_count(spec)} micro-batches cannot keep {computing} replicas{each} busy",
            f"raise global_batch to at least {computing * inner * spec.training.micro_batch}, or lower micro_batch",
        )


def check_micro_batches(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Each step's report names its micro-batches one by one, and a report has its bounds."""
    if micro_batch_count(spec) > MAX_MICRO_BATCHES:
        yield Fault(
            "/spec/training/micro_batch",
            f"{micro_batch_count(spec)} micro-batches a step, the limit is {MAX_MICRO_BATCHES}",
            f"raise it to at least {-(-spec.training.global_batch // MAX_MICRO_BATCHES)}, or lower global_batch",
        )


def check_batch_mode(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Standing by takes replicas beyond those that compute."""
    replicas, computing = replica_count(spec), max_contributors(spec)
    if computing is not None and computing == replicas:
        yield Fault(
            "/spec/training/batch_mode",
            f'"spares" lets replicas beyond min_replicas = {computing} stand by, and the job has {replicas}',
            'lower min_replicas, ask for more nodes, or choose "redistribute"',
        )


def check_pipeline(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """A pipeline needs a micro-batch for each stage. (The global batch need not divide by
    the replicas: they share micro-batches out unevenly.)"""
    micro_batch, pp = spec.training.micro_batch, spec.parallelism.pp
    if spec.training.global_batch % micro_batch == 0 and micro_batch_count(spec) < pp:
        yield Fault(
            "/spec/parallelism/pp",
            f"{micro_batch_count(spec)} micro-batches a step cannot fill a pipeline of {pp} stages",
            f"raise global_batch to at least {pp * micro_batch}, or lower pp",
        )


def check_spares(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Spares below one replica replace nothing."""
    spares, per_replica = spec.resources.spares.gpus, ranks_per_replica(spec.parallelism)
    if 0 < spares < per_replica:
        yield Fault(
            "/spec/resources/spares/gpus",
            f"{spares} spare devices cannot hold a replica of {per_replica} ranks",
            f"set it to 0 or to a multiple of {per_replica}",
        )


def check_preset(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """A preset that nobody knows fills in nothing."""
    name = spec.model.preset
    if name is not None and name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.5)
        yield Fault(
            "/spec/model/preset",
            f"unknown preset {name[:64]!a}",
            f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(PRESETS)}",
        )


def check_learning_rates(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """The decay ends below where it begins."""
    if spec.training.min_learning_rate > spec.training.learning_rate:
        yield Fault("/spec/training/min_learning_rate", "min_learning_rate is above learning_rate", "lower it")


def check_warmup(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Something must be left to train after the warm-up."""
    if spec.training.warmup_steps >= spec.training.steps:
        yield Fault(
            "/spec/training/warmup_steps",
            f"warmup_steps = {spec.training.warmup_steps} leaves none of {spec.training.steps} steps to train",
            f"set it below {spec.training.steps}",
        )


def check_step_timeout(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """The watchdog of a step must outlast a step."""
    timeouts = spec.resiliency.timeouts
    if timeouts.step_s == "auto":
        return
    if timeouts.step_s < timeouts.step_floor_s:
        yield Fault(
            "/spec/resiliency/timeouts/step_s",
            f"step_s = {timeouts.step_s} is below step_floor_s = {timeouts.step_floor_s}",
            "raise step_s or lower step_floor_s",
        )


def check_step_delay(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Nor may one micro-batch alone take longer."""
    timeouts = spec.resiliency.timeouts
    if timeouts.step_s != "auto" and timeouts.step_s <= spec.training.step_delay_s:
        yield Fault(
            "/spec/resiliency/timeouts/step_s",
            f"one micro-batch waits {spec.training.step_delay_s} s by step_delay_s: every step would time out",
            "raise step_s above the time of a whole step",
        )


def check_checkpoint_timeout(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Only saves that block teach how long one takes."""
    if spec.resiliency.timeouts.checkpoint_s == "auto" and spec.checkpoint.asynchronous:
        yield Fault(
            "/spec/resiliency/timeouts/checkpoint_s",
            '"auto" learns from saves that hold training up, and asynchronous ones do not',
            "give seconds (420 is the default), or set checkpoint.async to false",
        )


def check_emergency_deadline(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """An emergency save may not take longer than any save may."""
    deadline_s, timeout_s = spec.checkpoint.emergency.deadline_s, spec.resiliency.timeouts.checkpoint_s
    if timeout_s != "auto" and deadline_s > timeout_s:
        yield Fault(
            "/spec/checkpoint/emergency/deadline_s",
            f"an emergency save may take {deadline_s} s, but a save times out after checkpoint_s = {timeout_s} s",
            "lower deadline_s or raise timeouts.checkpoint_s",
        )


def check_risk(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """A threshold nothing can reach is an alarm that never rings."""
    threshold = spec.resiliency.risk.threshold
    if threshold > ground.reachable_risk:
        yield Fault(
            "/spec/resiliency/risk/threshold",
            f"threshold = {threshold} can never be reached: devices here score at most {ground.reachable_risk:g}",
            f"set it to {ground.reachable_risk:g} or less; 0.30 is the default",
        )


def check_budget(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """A window cannot allow more restarts than the whole job."""
    budget = spec.resiliency.budget
    if budget.restarts_per_window > budget.max_restarts:
        yield Fault(
            "/spec/resiliency/budget/restarts_per_window",
            f"{budget.restarts_per_window} restarts a window, but only {budget.max_restarts} over the whole job",
            f"set it to {budget.max_restarts} or less",
        )


def check_data(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Means the same on every node."""
    yield from absolute("/spec/training/data", spec.training.data)


def check_entrypoint(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """An argv list names a program."""
    if spec.entrypoint is not None and (not spec.entrypoint or not spec.entrypoint[0]):
        yield Fault(
            "/spec/entrypoint",
            "an empty command",
            'give the program and its arguments: ["/srv/train/.venv/bin/python", "/srv/train/train.py"]',
        )


def check_env(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """The environment does not speak for the platform."""
    for name, value in sorted(spec.env.items()):
        if value.startswith(SEALED_MARK):
            yield Fault(f"/spec/env/{name}", "this is how a value rests sealed, not a value", "give the value itself")
        if name.upper().startswith(RESERVED_ENV_PREFIX):
            yield Fault(f"/spec/env/{name}", f"{RESERVED_ENV_PREFIX}* is set by the agent", "choose another name")


def _as_checks(rules: Rules, *, built_in: bool) -> Iterator[tuple[Check, tuple[str, ...]]]:
    """Rules of layout as checks of a spec; those of the built-in trainer spare other programs."""
    for rule, reads in rules:

        def check(spec: TrainSpec, ground: Ground, rule: Rule = rule) -> Iterator[Fault]:
            if spec.entrypoint is None or not built_in:
                yield from rule(spec.parallelism, spec.model, spec.training)

        yield check, reads


_PP = "/spec/parallelism/pp"
_TIMEOUTS = "/spec/resiliency/timeouts"
_LOCAL = "/spec/checkpoint/local"
_LOCAL_TIER = (f"{_LOCAL}/medium", f"{_LOCAL}/dir")
_FAULTS = "/spec/resiliency/faults"
_NUMERICS = "/spec/training/numerics"
_STRAGGLERS = "/spec/resiliency/stragglers"

CHECKS: tuple[tuple[Check, tuple[str, ...]], ...] = (
    (check_devices, (*_LAYOUT, *_DEVICES, "/spec/parallelism/dp")),
    (check_micro_batches, _BATCH),
    *_as_checks(SHAPE_RULES, built_in=False),
    *_as_checks(BUILT_IN_RULES, built_in=True),
    (check_preset, ("/spec/model/preset",)),
    (check_pipeline, (*_BATCH, _PP)),
    (check_replicas, (*_LAYOUT, *_DEVICES, "/spec/parallelism/dp", "/spec/resources/min_replicas")),
    (check_shares, (*_LAYOUT, *_DEVICES, *_BATCH, "/spec/parallelism/dp", "/spec/training/batch_mode")),
    (
        check_batch_mode,
        (*_LAYOUT, *_DEVICES, "/spec/parallelism/dp", "/spec/resources/min_replicas", "/spec/training/batch_mode"),
    ),
    (check_spares, ("/spec/resources/spares/gpus", *_LAYOUT)),
    (check_learning_rates, ("/spec/training/min_learning_rate", "/spec/training/learning_rate")),
    (check_warmup, ("/spec/training/warmup_steps", "/spec/training/steps")),
    (check_step_timeout, (f"{_TIMEOUTS}/step_s", f"{_TIMEOUTS}/step_floor_s")),
    (check_step_delay, (f"{_TIMEOUTS}/step_s", "/spec/training/step_delay_s")),
    (check_checkpoint_timeout, ("/spec/checkpoint/async", f"{_TIMEOUTS}/checkpoint_s")),
    (check_emergency_deadline, ("/spec/checkpoint/emergency/deadline_s", f"{_TIMEOUTS}/checkpoint_s")),
    (check_risk, ("/spec/resiliency/risk/threshold",)),
    (check_budget, ("/spec/resiliency/budget/restarts_per_window", "/spec/resiliency/budget/max_restarts")),
    (check_checkpoint_dir, ("/spec/checkpoint/dir",)),
    (check_local_dir, (f"{_LOCAL}/dir",)),
    (check_local_copies, (*_LOCAL_TIER, f"{_LOCAL}/copies", "/spec/resources/nodes")),
    (check_local_interval, (*_LOCAL_TIER, f"{_LOCAL}/interval_steps", "/spec/checkpoint/interval_steps")),
    (check_local_program, (*_LOCAL_TIER, "/spec/entrypoint")),
    (check_restore_test, ("/spec/checkpoint/restore_test", "/spec/entrypoint")),
    (check_data, ("/spec/training/data",)),
    (check_entrypoint, ("/spec/entrypoint",)),
    (check_spikes, (f"{_NUMERICS}/check_spike", f"{_NUMERICS}/rerun")),
    (check_rerun_checks, (f"{_NUMERICS}/rerun", f"{_NUMERICS}/check_nan", f"{_NUMERICS}/check_spike")),
    (check_rerun_program, (f"{_NUMERICS}/rerun", "/spec/entrypoint")),
    (check_act_after, ("/spec/resiliency/act_after_s", "/spec/resiliency/mode")),
    (check_look_interval, ("/spec/resiliency/look_every_s",)),
    (check_look_ranks, ("/spec/resiliency/look_ranks",)),
    (check_stragglers, (f"{_STRAGGLERS}/relative", f"{_STRAGGLERS}/individual")),
    *(
        (straggler_threshold(name), (f"{_STRAGGLERS}/{name}", f"{_STRAGGLERS}/{name}_threshold"))
        for name in ("relative", "individual")
    ),
    (check_log_markers, ("/spec/resiliency/log_markers",)),
    (check_env, ("/spec/env",)),
    (check_launcher, ("/spec/entrypoint",)),
    (check_own_replicas, (*_LAYOUT, *_DEVICES, "/spec/parallelism/dp", "/spec/entrypoint")),
    (check_nccl_environment, ("/spec/env", "/spec/entrypoint")),
    (check_watchdog, (f"{_TIMEOUTS}/step_s", f"{_TIMEOUTS}/setup_s", "/spec/entrypoint")),
    (check_nccl_watchdog, (f"{_TIMEOUTS}/step_s", "/spec/env")),
    (check_faults_allowed, (f"{_FAULTS}/kind", "/spec/resiliency/allow_faults")),
    (check_fault_kind, (f"{_FAULTS}/kind", "/spec/entrypoint")),
    (check_fault_target, (f"{_FAULTS}/kind", f"{_FAULTS}/rank", *_LAYOUT, *_DEVICES, "/spec/parallelism/dp")),
    (check_fault_replicas, (f"{_FAULTS}/kind", *_LAYOUT, *_DEVICES, "/spec/parallelism/dp")),
)
