"""A layout that cannot train is refused at submit, and again by the trainer, with its reason."""

from typing import Any, Literal

import msgspec
import pytest

from controlplane.protocol.launch import TrainerConfig
from controlplane.protocol.spec import Checkpoint, Model, Numerics, Parallelism, Training, ranks_per_replica
from controlplane.protocol.spec_lint import lint
from trainer.config import check
from trainer.errors import ConfigInvalid

MOE = {"family": "moe", "experts": 4, "experts_per_token": 2}
# layout, model, pointer of the fault, a word of its reason
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"cp": 2}, {"sequence_length": 62}, "/spec/parallelism/cp", "2 x cp = 4"),
    ({"cp": 3}, {"family": "bert"}, "/spec/parallelism/cp", "sequence_length = 64"),
    ({"distributed_optimizer": True}, {}, "/spec/parallelism/distributed_optimizer", "one data-parallel rank"),
    ({"vp": 2}, {}, "/spec/parallelism/vp", "without a pipeline"),
    ({"pp": 2, "vp": 3}, {"layers": 4}, "/spec/parallelism/vp", "pp x vp = 6"),
    ({"sequence_parallel": True}, {}, "/spec/parallelism/sequence_parallel", "tp = 1"),
    ({"tp": 2, "sequence_parallel": True}, {"sequence_length": 63}, "/spec/parallelism/sequence_parallel", "63"),
    (
        {"tp": 8, "cp": 2, "sequence_parallel": True},
        {"sequence_length": 40, "heads": 8},
        "/spec/parallelism/sequence_parallel",
        "tp x cp = 16",
    ),
    ({"tp": 2, "sequence_parallel": True}, {"family": "bert"}, "/spec/parallelism/sequence_parallel", "BERT"),
    ({"tp": 2}, MOE, "/spec/parallelism/sequence_parallel", "mixture of experts"),
    ({"replica_dp": 2, "ep": 2}, {}, "/spec/parallelism/ep", "no experts"),
    ({"ep": 2}, MOE, "/spec/parallelism/ep", "does not divide replica_dp x cp = 1"),
    ({"replica_dp": 3, "ep": 3}, MOE, "/spec/parallelism/ep", "experts = 4"),
    ({}, {**MOE, "experts_per_token": 5}, "/spec/model/experts_per_token", "of experts = 4"),
    ({}, {"experts": 4}, "/spec/model/experts", "a gpt has no experts"),
    ({}, {"family": "bert", "experts_per_token": 1}, "/spec/model/experts_per_token", "a bert has no experts"),
    ({"tp": 2}, {"ffn_hidden": 65}, "/spec/model/ffn_hidden", "tp = 2"),
    ({"tp": 2}, {"heads": 1}, "/spec/model/heads", "tp = 2"),
    ({"tp": 2}, {"kv_heads": 1}, "/spec/model/kv_heads", "tp = 2"),
    ({"tp": 2}, {"vocab_size": 257}, "/spec/model/vocab_size", "tp = 2"),
    ({"pp": 3}, {}, "/spec/model/layers", "pp = 3"),
    ({"replica_dp": 16}, {}, "/spec/parallelism/replica_dp", "12 micro-batches"),
]
SOUND: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"pp": 2, "vp": 2}, {"layers": 8}),
    ({"pp": 2, "vp": 2, "replica_dp": 3}, {"layers": 8}),
    ({"tp": 2, "sequence_parallel": True}, {}),
    ({"tp": 2, "pp": 2, "replica_dp": 2}, {"family": "bert"}),
    ({"pp": 2, "vp": 2, "replica_dp": 4, "ep": 2}, MOE),
    ({"tp": 2, "replica_dp": 2, "ep": 2, "sequence_parallel": True}, MOE),
    ({"cp": 4}, {}),
    ({"pp": 2, "vp": 2, "cp": 2, "replica_dp": 2}, {"layers": 8}),
    ({"tp": 2, "pp": 2, "cp": 2}, {"family": "bert"}),
    ({"tp": 2, "cp": 2, "ep": 2, "sequence_parallel": True}, MOE),
    ({"tp": 2, "pp": 2, "replica_dp": 2, "distributed_optimizer": True}, {"family": "bert"}),
    ({"replica_dp": 4, "ep": 2, "distributed_optimizer": True}, MOE),
    ({"cp": 2, "distributed_optimizer": True}, {}),
]


def document(layout: dict[str, Any], model: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A job of one replica, on one node that it fills."""
    ranks = ranks_per_replica(Parallelism(**layout))
    resources = {"nodes": 1, "gpus_per_node": ranks}
    return {
        "metadata": {"name": "x"},
        "spec": {"resources": resources, "parallelism": layout, "model": model, **spec},
    }


def config(layout: dict[str, Any], model: dict[str, Any]) -> TrainerConfig:
    return TrainerConfig(
        model=Model(**model),
        parallelism=Parallelism(**layout),
        training=Training(),
        checkpoint=Checkpoint(),
        checkpoint_dir="checkpoints",
        replicas=1,
        store="127.0.0.1:1",
    )


@pytest.mark.parametrize(("layout", "model", "pointer", "reason"), REFUSED)
def test_refused_at_submit_with_the_reason(
    layout: dict[str, Any], model: dict[str, Any], pointer: str, reason: str
) -> None:
    faults = [fault for fault in lint(document(layout, model)).faults if fault.pointer == pointer]
    assert any(reason in fault.message for fault in faults)
    assert all(fault.fix for fault in faults)


@pytest.mark.parametrize(("layout", "model", "pointer", "reason"), REFUSED)
def test_refused_again_by_the_trainer(layout: dict[str, Any], model: dict[str, Any], pointer: str, reason: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        check(config(layout, model), ranks_per_replica(Parallelism(**layout)))
    assert reason in str(caught.value)
    assert pointer.removeprefix("/spec/").replace("/", ".") in str(caught.value)


@pytest.mark.parametrize(("layout", "model"), SOUND)
def test_what_trains_is_refused_by_neither(layout: dict[str, Any], model: dict[str, Any]) -> None:
    assert lint(document(layout, model)).faults == ()
    check(config(layout, model), ranks_per_replica(Parallelism(**layout)))


def test_another_program_may_use_what_the_built_in_trainer_cannot() -> None:
    for layout in ({"cp": 3}, {"distributed_optimizer": True}):
        assert lint(document(layout, {}, entrypoint=["python", "train.py"])).faults == ()
        assert len(lint(document(layout, {})).faults) == 1


def test_a_fault_of_the_layout_is_told_once_whatever_else_is_wrong() -> None:
    broken = document({"cp": 3, "vp": 2}, {"family": "bert", "experts": 3})
    pointers = [fault.pointer for fault in lint(broken).faults]
    assert sorted(pointers) == ["/spec/model/experts", "/spec/parallelism/cp", "/spec/parallelism/vp"]


def test_the_trainer_names_every_fault_at_once() -> None:
    wrong = msgspec.structs.replace(config({"cp": 3, "vp": 2}, {}), replicas=0)
    with pytest.raises(ConfigInvalid, match=r"replicas.*parallelism\.vp.*parallelism\.cp"):
        check(wrong, 2)


@pytest.mark.parametrize("layout", [{"pp": 2, "vp": 2}, {"replica_dp": 2}, {"pp": 2}], ids=str)
@pytest.mark.parametrize("rerun", ["validate_results", "report_determinism_stats"])
def test_a_step_is_computed_twice_only_by_ranks_that_do_so_together(
    layout: dict[str, int], rerun: Literal["validate_results", "report_determinism_stats"]
) -> None:
    pointer, together = "/spec/training/numerics/rerun", layout == {"pp": 2}
    submitted = document(layout, {}, training={"numerics": {"rerun": rerun}})
    faults = [fault.message for fault in lint(submitted).faults if fault.pointer == pointer]
    assert ["must compute again together" in message for message in faults] == ([] if together else [True])
    given = msgspec.structs.replace(config(layout, {}), training=Training(numerics=Numerics(rerun=rerun)))
    try:
        check(given, ranks_per_replica(given.parallelism))
    except ConfigInvalid as error:
        assert not together and "training.numerics.rerun: all ranks of a replica must compute again" in str(error)
    else:
        assert together, "the trainer takes it"
