"""Checks of a job spec that span fields. Each reads a well-typed spec and yields faults.

`CHECKS` pairs each check with the pointers it reads: a check runs only when none of
those is faulty itself, so one mistake is told once.
"""

import os.path
from collections.abc import Callable, Iterator

import msgspec

from controlplane.protocol.spec import TrainSpec, micro_batch_count, ranks_per_replica, replica_count
from controlplane.protocol.spec_limits import RESERVED_ENV_PREFIX

# S2.1's weights without `errors`: a fleet that reads no error counters can score no
# more, which is why the published threshold of 0.95 never fired. The control plane
# passes what its own fleet can reach.
REACHABLE_RISK_WITHOUT_ERRORS = 0.75

_LAYOUT = (
    "/spec/parallelism/tp",
    "/spec/parallelism/pp",
    "/spec/parallelism/cp",
    "/spec/parallelism/replica_dp",
)
_DEVICES = ("/spec/resources/nodes", "/spec/resources/gpus_per_node")
_BATCH = ("/spec/training/global_batch", "/spec/training/micro_batch")


class Fault(msgspec.Struct, frozen=True):
    """One thing wrong: where (JSON Pointer), what, and how to mend it."""

    pointer: str
    message: str
    fix: str


class Ground(msgspec.Struct, frozen=True):
    """What a check may know besides the spec. `reachable_risk`: the highest score
    (0..1) a device of this fleet can get."""

    reachable_risk: float = REACHABLE_RISK_WITHOUT_ERRORS


Check = Callable[[TrainSpec, Ground], Iterator[Fault]]


def check_devices(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """TP x PP x CP x DP must be the devices asked for, and a replica must fit nodes whole."""
    devices = spec.resources.nodes * spec.resources.gpus_per_node
    per_replica, gpus = ranks_per_replica(spec.parallelism), spec.resources.gpus_per_node
    sum_of = f"tp x pp x cp = {per_replica}"
    if devices < per_replica:
        yield Fault(
            "/spec/resources/nodes",
            f"{devices} devices (nodes x gpus_per_node) cannot hold one replica of {sum_of}",
            f"ask for at least {-(-per_replica // gpus)} nodes of {gpus}, or lower tp or pp",
        )
        return
    dp = spec.parallelism.dp
    if dp == "auto" and devices % per_replica:
        yield Fault(
            "/spec/parallelism",
            f"{sum_of} does not divide {devices} devices: {devices % per_replica} would stay idle",
            "choose tp and pp so that tp x pp x cp divides nodes x gpus_per_node, or set dp",
        )
    if dp != "auto" and dp * per_replica != devices:
        yield Fault(
            "/spec/parallelism/dp",
            f"tp x pp x cp x dp = {dp * per_replica}, but nodes x gpus_per_node = {devices}",
            f'set dp to {devices // per_replica} or "auto", or change nodes',
        )
    if per_replica % gpus and gpus % per_replica:
        yield Fault(
            "/spec/resources/gpus_per_node",
            f"a replica of {per_replica} ranks neither fills whole nodes of {gpus} nor shares one evenly",
            "choose gpus_per_node so that it divides tp x pp x cp, or the other way round",
        )


def check_replicas(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """There must be enough replicas to lose some, and work for each."""
    replicas = replica_count(spec)
    if spec.resources.min_replicas > max(replicas, 1):
        yield Fault(
            "/spec/resources/min_replicas",
            f"min_replicas = {spec.resources.min_replicas}, but the job has {replicas} replicas",
            f"set it to {max(replicas, 1)} or less",
        )
    if spec.training.global_batch % spec.training.micro_batch:
        return
    if 0 < micro_batch_count(spec) < replicas:
        yield Fault(
            "/spec/training/global_batch",
            f"{micro_batch_count(spec)} micro-batches cannot keep {replicas} replicas busy",
            f"raise global_batch to at least {replicas * spec.training.micro_batch}, or lower micro_batch",
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
    if timeouts.step_s <= spec.training.step_delay_s:
        yield Fault(
            "/spec/resiliency/timeouts/step_s",
            f"one micro-batch waits {spec.training.step_delay_s} s by step_delay_s: every step would time out",
            "raise step_s above the time of a whole step",
        )


def check_deadline(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """An emergency save may not take longer than any save may."""
    deadline_s, timeout_s = spec.checkpoint.emergency.deadline_s, spec.resiliency.timeouts.checkpoint_s
    if deadline_s > timeout_s:
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


def check_checkpoint_dir(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Means the same on every node."""
    yield from _absolute("/spec/checkpoint/dir", spec.checkpoint.dir)


def check_data(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Means the same on every node."""
    yield from _absolute("/spec/training/data", spec.training.data)


def check_entrypoint(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """An argv list names a program."""
    if spec.entrypoint is not None and (not spec.entrypoint or not spec.entrypoint[0]):
        yield Fault(
            "/spec/entrypoint", "an empty command", 'give the program and its arguments: ["python", "train.py"]'
        )


def check_numerics(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """A check needs a second run to be judged by, and a second run needs our trainer."""
    wish = spec.training.numerics
    if wish.check_spike and wish.rerun != "validate_results":
        yield Fault(
            "/spec/training/numerics/check_spike",
            f"a spike is judged by computing it again, but rerun = {wish.rerun!r}",
            'set rerun to "validate_results", or check_spike to false',
        )
    if wish.rerun == "validate_results" and not (wish.check_nan or wish.check_spike):
        yield Fault(
            "/spec/training/numerics/rerun",
            "nothing is checked, so nothing would ever be computed again",
            "set check_nan or check_spike, or leave rerun out",
        )
    if wish.rerun != "disabled" and spec.entrypoint is not None:
        yield Fault(
            "/spec/training/numerics/rerun",
            "steps are computed again by the built-in trainer only, and this job runs a program of its own",
            "leave it out",
        )


def check_stragglers(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """A detector without a score finds nothing; a threshold of 0 is never passed."""
    wish = spec.resiliency.stragglers
    if not (wish.relative or wish.individual):
        yield Fault(
            "/spec/resiliency/stragglers",
            "relative and individual are both off: no straggler could ever be found",
            "leave at least one on",
        )
    for name in ("relative", "individual"):
        if getattr(wish, name) and getattr(wish, f"{name}_threshold") <= 0.0:
            yield Fault(
                f"/spec/resiliency/stragglers/{name}_threshold",
                "no score is below 0: no straggler could ever be found",
                f"set it above 0 (0.7 is the default), or {name} to false",
            )


def check_env(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """The environment does not speak for the platform."""
    for name in sorted(spec.env):
        if name.upper().startswith(RESERVED_ENV_PREFIX):
            yield Fault(f"/spec/env/{name}", f"{RESERVED_ENV_PREFIX}* is set by the agent", "choose another name")


def _absolute(pointer: str, path: str | None) -> Iterator[Fault]:
    if path is not None and (not os.path.isabs(path) or ".." in path.split("/")):
        yield Fault(pointer, "not an absolute path without '..'", "give the full path, the same on every node")


def _divisible(pointer: str, by_pointer: str) -> tuple[Check, tuple[str, ...]]:
    """The check that one field is a multiple of another (None: nothing to divide)."""

    def check(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
        value, by = _at(spec, pointer), _at(spec, by_pointer)
        name, by_name = pointer.rpartition("/")[2], by_pointer.rpartition("/")[2]
        if value is not None and by is not None and value % by:
            yield Fault(
                pointer,
                f"{name} = {value} is not divisible by {by_name} = {by}",
                f"make {name} a multiple of {by}, or change {by_name}",
            )

    return check, (pointer, by_pointer)


def _at(spec: TrainSpec, pointer: str) -> int | None:
    """The whole number (or None) at /spec/<section>/<field>."""
    _, _, section, field = pointer.split("/")
    value = getattr(getattr(spec, section), field)
    assert value is None or isinstance(value, int)
    return value


def _unreleased(pointer: str, default: object) -> tuple[Check, tuple[str, ...]]:
    """The check that a field the format knows, but this release does not act on, is left alone."""

    def check(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
        value: object = spec
        for name in pointer.split("/")[2:]:
            value = getattr(value, name)
        if value != default:
            name = pointer.rpartition("/")[2]
            yield Fault(pointer, f"{name} = {value!r} is not in this release", f"leave it out ({default!r})")

    return check, (pointer,)


_TP, _PP = "/spec/parallelism/tp", "/spec/parallelism/pp"
_TIMEOUTS = "/spec/resiliency/timeouts"

CHECKS: tuple[tuple[Check, tuple[str, ...]], ...] = (
    _unreleased("/spec/parallelism/cp", 1),
    _unreleased("/spec/parallelism/ep", 1),
    _unreleased("/spec/parallelism/vp", 1),
    _unreleased("/spec/parallelism/replica_dp", 1),
    _unreleased("/spec/parallelism/sequence_parallel", False),
    _unreleased("/spec/parallelism/distributed_optimizer", False),
    _unreleased("/spec/model/family", "gpt"),
    _unreleased("/spec/model/preset", None),
    _unreleased("/spec/model/ffn_hidden", None),
    _unreleased("/spec/training/batch_mode", "redistribute"),
    _unreleased("/spec/checkpoint/local/dir", None),
    _unreleased("/spec/checkpoint/restore_test", False),
    _unreleased("/spec/resiliency/faults/kind", "none"),
    (check_devices, (*_LAYOUT, *_DEVICES, "/spec/parallelism/dp")),
    # Every shard of the model has the same shape.
    _divisible("/spec/model/hidden", "/spec/model/heads"),
    _divisible("/spec/model/heads", _TP),
    _divisible("/spec/model/heads", "/spec/model/kv_heads"),
    _divisible("/spec/model/kv_heads", _TP),
    _divisible("/spec/model/vocab_size", _TP),
    _divisible("/spec/model/layers", _PP),
    _divisible("/spec/training/global_batch", "/spec/training/micro_batch"),
    (check_pipeline, (*_BATCH, _PP)),
    (check_replicas, (*_LAYOUT, *_DEVICES, *_BATCH, "/spec/parallelism/dp", "/spec/resources/min_replicas")),
    (check_spares, ("/spec/resources/spares/gpus", *_LAYOUT)),
    (check_learning_rates, ("/spec/training/min_learning_rate", "/spec/training/learning_rate")),
    (check_warmup, ("/spec/training/warmup_steps", "/spec/training/steps")),
    (check_step_timeout, (f"{_TIMEOUTS}/step_s", f"{_TIMEOUTS}/step_floor_s", "/spec/training/step_delay_s")),
    (check_deadline, ("/spec/checkpoint/emergency/deadline_s", f"{_TIMEOUTS}/checkpoint_s")),
    (check_risk, ("/spec/resiliency/risk/threshold",)),
    (check_budget, ("/spec/resiliency/budget/restarts_per_window", "/spec/resiliency/budget/max_restarts")),
    (check_checkpoint_dir, ("/spec/checkpoint/dir",)),
    (check_data, ("/spec/training/data",)),
    (check_entrypoint, ("/spec/entrypoint",)),
    (check_numerics, ("/spec/training/numerics", "/spec/entrypoint")),
    (check_stragglers, ("/spec/resiliency/stragglers",)),
    (check_env, ("/spec/env",)),
)
