"""Checks of a job spec about numerics, stragglers, log markers and rehearsed faults."""

from collections.abc import Iterator

from controlplane.protocol import markers
from controlplane.protocol.rank_faults import RANDOM, is_scheduled, kinds_for
from controlplane.protocol.spec import TrainSpec, ranks_per_replica, replica_count
from controlplane.protocol.spec_fault import Check, Fault, Ground
from controlplane.protocol.states import Mode

LOOK_FLOOR_S = 60.0
LOOK_RANKS_MAX = 64
ACT_AFTER_FLOOR_S = 10.0


def check_spikes(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """A check needs a second run to be judged by."""
    settings = spec.training.numerics
    if settings.check_spike and settings.rerun != "validate_results":
        yield Fault(
            "/spec/training/numerics/check_spike",
            f"a spike is judged by computing it again, but rerun = {settings.rerun!r}",
            'set rerun to "validate_results", or check_spike to false',
        )


def check_rerun_checks(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """A second run needs a check to ask for it."""
    settings = spec.training.numerics
    if settings.rerun == "validate_results" and not (settings.check_nan or settings.check_spike):
        yield Fault(
            "/spec/training/numerics/rerun",
            "nothing is checked, so nothing would ever be computed again",
            "set check_nan or check_spike, or leave rerun out",
        )


def check_rerun_program(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """A second run needs our trainer."""
    settings = spec.training.numerics
    if settings.rerun != "disabled" and spec.entrypoint is not None:
        yield Fault(
            "/spec/training/numerics/rerun",
            "steps are computed again by the built-in trainer only, and this job runs a program of its own",
            "leave it out",
        )


def check_stragglers(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """A detector without a score finds nothing."""
    settings = spec.resiliency.stragglers
    if not (settings.relative or settings.individual):
        yield Fault(
            "/spec/resiliency/stragglers",
            "relative and individual are both off: no straggler could ever be found",
            "leave at least one on",
        )


def straggler_threshold(name: str) -> Check:
    """The check of `name` (relative, individual): a threshold of 0 is never passed."""

    def check(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
        settings = spec.resiliency.stragglers
        if getattr(settings, name) and getattr(settings, f"{name}_threshold") <= 0.0:
            yield Fault(
                f"/spec/resiliency/stragglers/{name}_threshold",
                "no score is below 0: no straggler could ever be found",
                f"set it above 0 (0.7 is the default), or {name} to false",
            )

    return check


def check_look_interval(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Looks on schedule cost the ranks something, so there is a floor."""
    settings = spec.resiliency
    if settings.look_every_s != 0.0 and settings.look_every_s < LOOK_FLOOR_S:
        yield Fault(
            "/spec/resiliency/look_every_s",
            f"{settings.look_every_s:g} s is below the floor: a diagnostic stops a rank's interpreter for milliseconds",
            f"set it to {LOOK_FLOOR_S:g} or more, or to 0 for diagnostics at a hang alone",
        )


def check_look_ranks(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """And a cap."""
    settings = spec.resiliency
    if not 1 <= settings.look_ranks <= LOOK_RANKS_MAX:
        yield Fault(
            "/spec/resiliency/look_ranks",
            f"{settings.look_ranks} ranks a diagnostic is not between 1 and {LOOK_RANKS_MAX}",
            f"set it to {LOOK_RANKS_MAX} at most; the ranks of a larger replica have their turns one after the other",
        )


def check_act_after(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """A countdown is of recommendations, and leaves people time to object."""
    settings = spec.resiliency
    if settings.act_after_s == 0.0:
        return
    if settings.mode is not Mode.RECOMMEND:
        yield Fault(
            "/spec/resiliency/act_after_s",
            f"nothing is only recommended with mode {str(settings.mode)!r}",
            'set mode to "recommend", or leave act_after_s out',
        )
    elif settings.act_after_s < ACT_AFTER_FLOOR_S:
        yield Fault(
            "/spec/resiliency/act_after_s",
            f"within {settings.act_after_s:g} s nobody could object",
            f"set it to {ACT_AFTER_FLOOR_S:g} or more, or to 0 to wait for a person",
        )


def check_log_markers(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """A marker that every line has tells nothing, and too many cost the agent its time."""
    own = spec.resiliency.log_markers
    if len(own) > markers.MAX_OWN:
        yield Fault(
            "/spec/resiliency/log_markers",
            f"{len(own)} markers, at most {markers.MAX_OWN} are looked for",
            "leave the others out, or join similar ones with *",
        )
    for name, pattern in own.items():
        wrong = markers.fault_of(name, pattern)
        if wrong is not None:
            yield Fault(
                f"/spec/resiliency/log_markers/{name}",
                wrong,
                "choose a name and a text of your own; * stands for anything",
            )


def check_faults_allowed(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """A rehearsal is allowed explicitly."""
    schedule = spec.resiliency.faults
    if is_scheduled(schedule) and not spec.resiliency.allow_faults:
        yield Fault(
            "/spec/resiliency/faults/kind",
            f"kind = {schedule.kind!r} breaks ranks on purpose, but allow_faults is false",
            "set resiliency.allow_faults to true, or leave faults out",
        )


def check_fault_kind(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """And can be carried out by what the job runs."""
    schedule = spec.resiliency.faults
    if is_scheduled(schedule) and schedule.kind not in (RANDOM, *kinds_for(spec)):
        yield Fault(
            "/spec/resiliency/faults/kind",
            f"kind = {schedule.kind!r} is done by the built-in trainer, not by an entrypoint of the job's own",
            f"use {', '.join(kinds_for(spec))} or {RANDOM}",
        )


def check_fault_target(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """It hits a rank that exists, and one that can be hit so."""
    schedule, replicas = spec.resiliency.faults, replica_count(spec)
    ranks = replicas * ranks_per_replica(spec.parallelism)
    if is_scheduled(schedule) and schedule.rank >= ranks:
        yield Fault(
            "/spec/resiliency/faults/rank",
            f"rank = {schedule.rank}, but the job has ranks 0 to {ranks - 1}",
            "choose one of them, or -1 for any",
        )


def check_fault_replicas(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """To be cut off takes somebody to be cut off from."""
    schedule, replicas = spec.resiliency.faults, replica_count(spec)
    if schedule.kind == "communication" and replicas < 2:
        yield Fault(
            "/spec/resiliency/faults/kind",
            "kind = 'communication' cuts a rank off from other replicas, and there is only one",
            "ask for two replicas, or choose another kind",
        )
