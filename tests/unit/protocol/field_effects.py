"""What is done with a job's spec, as observations that a changed field changes; see test_every_field.py."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from controlplane.policy import budget, memory, rehearsal
from controlplane.policy.placement import Pool, of_type
from controlplane.policy.rules import device_risk, lifecycle, look
from controlplane.policy.snapshot import BudgetFact, DeviceFact, JobSnapshot, SaveFact
from controlplane.policy.stragglers import RankWork, scores
from controlplane.policy.timeouts import Observed, Seen, lease_s, section_timeouts, setup_limit_s, step_floor_s
from controlplane.protocol.launch import TrainerConfig
from controlplane.protocol.spec import (
    JobSpec,
    TrainSpec,
    max_contributors,
    micro_batch_count,
    rank_coordinates,
    ranks_per_replica,
    replica_count,
)
from controlplane.protocol.states import JobState
from tests.unit.policy.builders import CONFIG, NOW_S, change, job, node, running

POOL = Pool(nodes=tuple((f"n{index}", tuple(range(8))) for index in range(8)))


def placed(document: JobSpec) -> Any:
    """The first attempt on eight free nodes of eight devices: each replica's devices, and the spare nodes."""
    _, gang, spares = lifecycle.first_attempt(document.spec, POOL)
    return tuple(tuple((p.node_id, p.device_index) for p in replica) for replica in gang), spares


def devices_offered(document: JobSpec) -> Any:
    """Of two nodes with different devices those that may be taken."""
    kinds = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
    nodes = (
        change(node(index), devices=(DeviceFact(index=0, uuid=kind, free=True, model=kind),))
        for index, kind in enumerate(kinds)
    )
    return [fact.id for fact in of_type(nodes, document.spec.resources.gpu_type) if fact.devices]


def counted(document: JobSpec) -> Any:
    """Replicas, contributors at most, micro-batches, and where the ranks of a replica stand."""
    spec = document.spec
    places = [rank_coordinates(spec.parallelism, rank) for rank in range(ranks_per_replica(spec.parallelism))]
    return replica_count(spec), max_contributors(spec), micro_batch_count(spec), places


def device_bytes(document: JobSpec) -> int:
    """Memory that a device needs, by which layouts are chosen and refused."""
    spec = document.spec
    return memory.device_bytes(spec.model, spec.parallelism, spec.training)


def of_trainer(document: JobSpec) -> TrainerConfig:
    """What the ranks are given."""
    spec = document.spec
    return TrainerConfig(
        model=spec.model, parallelism=spec.parallelism, training=spec.training, checkpoint=spec.checkpoint,
        checkpoint_dir="/ck", replicas=replica_count(spec), store="127.0.0.1:1", resume=None, outer_timeout_s=60.0,
    )  # fmt: skip


def transformer(document: JobSpec) -> str:
    """Megatron's configuration of the model."""
    pytest.importorskip("megatron.core", reason="Megatron-core is not installed")
    from trainer.layers import transformer_config

    return repr(transformer_config(of_trainer(document)))


def adam(document: JobSpec) -> str:
    """What the optimizer is made with."""
    pytest.importorskip("megatron.core", reason="Megatron-core is not installed")
    from trainer import optimizer

    seen: list[Any] = []

    def caught(config: Any, *_: object, **__: object) -> Any:
        seen.append(config)
        return SimpleNamespace(chained_optimizers=[])

    chunk: Any = SimpleNamespace(ddp_config=SimpleNamespace(use_distributed_optimizer=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizer, "get_megatron_optimizer", caught)
        optimizer.build_optimizer(document.spec.training, [chunk])
    return repr(seen[0])


def rates(document: JobSpec) -> list[tuple[float, float]]:
    """Learning rate and weight decay of some steps."""
    pytest.importorskip("megatron.core", reason="Megatron-core is not installed")
    from trainer import optimizer

    training, found = document.spec.training, []
    group = {"lr": 0.0, "weight_decay": 0.0, "max_lr": training.learning_rate, "min_lr": training.min_learning_rate}
    inner: Any = SimpleNamespace(param_groups=[group])
    for step in (1, 7, 50, 99):
        schedule = optimizer.build_schedule(training, inner)
        optimizer.set_schedule(schedule, step)
        found.append((round(group["lr"], 12), group["weight_decay"]))
    return found


def samples(document: JobSpec) -> Any:
    """Which windows of the text the first samples are, and what they are cut from."""
    pytest.importorskip("numpy", reason="numpy is not installed")
    from trainer.data.samples import load_corpus

    training = document.spec.training
    corpus = load_corpus(training.data, sequence_length=document.spec.model.sequence_length, seed=training.seed)
    return corpus.windows, [corpus.window_of(number) for number in range(8)]


def limits(document: JobSpec) -> Any:
    """Section timeouts before and after something was seen, the lease, and the control plane's own patience."""
    wish, seen = document.spec.resiliency.timeouts, Seen(longest_s=0.1, samples=100)
    learned = section_timeouts(wish, Observed(steps=seen, setups=seen, closes=seen))
    return (
        section_timeouts(wish, Observed()), learned, lease_s(wish, 3.0, floor_s=10.0), step_floor_s(wish),
        setup_limit_s(wish, None),
    )  # fmt: skip


def watched(document: JobSpec) -> Any:
    """By what the sentinel judges a job's nodes and devices."""
    from controlplane.sentinel import fleetmap

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleetmap, "spec_of", lambda _: document)
        return fleetmap._limits(None)  # type: ignore[arg-type]


def world(spec: TrainSpec, **fields: Any) -> JobSnapshot:
    """A job with this spec that trains."""
    return running(job=job(spec=spec), **fields)


def budgets(document: JobSpec) -> list[str]:
    """Whether the budget of this job is spent by so much."""
    ledgers = (
        BudgetFact(no_progress_cycles=4), BudgetFact(restarts_total=45), BudgetFact(restarts_in_window=40),
        BudgetFact(attempt_restarts=3), BudgetFact(restarts_in_attempt=3), BudgetFact(program_in_window=3),
    )  # fmt: skip
    return [budget.spent(world(document.spec, budget=ledger)) for ledger in ledgers]


def emergency(document: JobSpec) -> Any:
    """Why an emergency save is refused after a while since the last, and since the last of its kind."""
    saves = (
        SaveFact(interval_s=100.0, last_committed_s=NOW_S - 30.0),
        SaveFact(interval_s=100.0, last_committed_s=NOW_S - 90.0, last_emergency_s=NOW_S - 90.0),
    )
    return [device_risk.refuse(world(document.spec, saves=each), CONFIG) for each in saves]


def looks(document: JobSpec) -> Any:
    """What a scheduled look is at."""
    base = job(spec=document.spec, state=JobState.RUNNING)
    decisions = look.rule(running(job=base), CONFIG)
    return look.due_s(running(job=base)), [decision.actions for decision in decisions]


def slow_ones(document: JobSpec) -> Any:
    """Scores of a rank that is a quarter slower than the others, of one much slower, and of one that was faster."""
    work = [
        RankWork(replica=r, incarnation=1, rank=0, stage=0, samples=50, compute_s=s, data_s=0.0, step_s=s, best_s=b)
        for r, s, b in ((0, 1.0, 1.0), (1, 1.0, 1.0), (2, 1.25, 1.25), (3, 2.0, 2.0), (4, 1.0, 0.75), (5, 1.0, 0.4))
    ]
    return scores(work, document.spec.resiliency.stragglers)


def rehearsed(document: JobSpec) -> Any:
    """When the first two scheduled faults come, and what and where they are."""
    spec, found = document.spec, []
    for fired in (0, 1):
        wait = rehearsal.wait_s(spec, training_s=0.0, fired=fired)
        due = rehearsal.due(spec, training_s=1e6, fired=fired, replicas=(0, 1, 2, 3), ranks_per_replica=2)
        found.append((wait, due and msgspec.structs.asdict(due)))
    return found


def cancelled(document: JobSpec) -> Any:
    """The order that ends a cancelled job."""
    (decision,) = lifecycle.rule(running(job=change(job(spec=document.spec), cancel_requested=True)), CONFIG)
    return decision.actions


def limited(document: JobSpec) -> Any:
    """What ends a job that began a minute ago."""
    found = lifecycle.rule(running(job=change(job(spec=document.spec), begun_s=NOW_S - 60.0)), CONFIG)
    return [decision.actions for decision in found]


def model(document: JobSpec) -> Any:
    """The model that is trained, whatever its preset is called."""
    return change(document.spec.model, preset=None)
