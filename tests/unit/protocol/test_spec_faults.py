"""Of many faults of a spec each is told, whatever the others are."""

import itertools
from copy import deepcopy
from typing import Any

import pytest

from controlplane.protocol.spec_limits import MAX_FAULTS
from controlplane.protocol.spec_lint import lint

BASE: dict[str, Any] = {
    "metadata": {"name": "a"},
    "spec": {
        "resources": {"nodes": 4, "gpus_per_node": 2},
        "parallelism": {"pp": 2},
        "training": {"steps": 100, "global_batch": 12},
    },
}
# Where, and what is written there.
INDEPENDENT: tuple[tuple[str, Any], ...] = (
    ("/metadata/name", "BAD NAME"),
    ("/kind", "Pod"),
    ("/spec/unknown", 1),
    ("/spec/env/1X", "a"),
    ("/spec/env/HOLDFAST_X", "a"),
    ("/spec/env/NUMBER", 3),
    ("/spec/env/TORCH_NCCL_RETHROW_CUDA_ERRORS", "1"),
    ("/spec/resiliency/log_markers/BAD KEY", "x"),
    ("/spec/resiliency/log_markers/good", ""),
    ("/spec/training/warmup_steps", 1000),
    ("/spec/training/min_learning_rate", 1.0),
    ("/spec/training/numerics/spike_factor", 0),
    ("/spec/training/numerics/check_spike", True),
    ("/spec/resources/min_replicas", 0),
    ("/spec/training/global_batch", 3),
    ("/spec/model/preset", "nope"),
    ("/spec/model/experts", 7),
    ("/spec/model/experts_per_token", 0),
    ("/spec/parallelism/sequence_parallel", True),
    ("/spec/model/sequence_length", 0),
    ("/spec/resiliency/timeouts/checkpoint_s", "auto"),
    ("/spec/checkpoint/emergency/deadline_s", 0),
    ("/spec/resiliency/timeouts/step_floor_s", 0),
    ("/spec/checkpoint/dir", "relative"),
    ("/spec/checkpoint/local/dir", "relative"),
    ("/spec/checkpoint/local/copies", 99),
    ("/spec/training/data", "relative"),
    ("/spec/resiliency/look_every_s", 0.1),
    ("/spec/resiliency/look_ranks", 0),
    ("/spec/resiliency/stragglers/interval_s", 0),
    ("/spec/resiliency/stragglers/relative_threshold", 0),
    ("/spec/resiliency/stragglers/individual_threshold", 2),
    ("/spec/resiliency/risk/threshold", 1.5),
    ("/spec/resiliency/budget/max_restarts", 1),
    ("/spec/resiliency/faults/kind", "rank_killed"),
    ("/spec/resiliency/faults/rank", -7),
    ("/spec/scheduling/priority", 5000),
)
# Fields whose own fault is judged at another's place.
TOLD_AT = {"/spec/resiliency/budget/max_restarts": "/spec/resiliency/budget/restarts_per_window"}


def spec_with(faults: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """The sound spec with these values written into it."""
    document = deepcopy(BASE)
    for pointer, value in faults:
        *path, last = pointer.split("/")[1:]
        section = document
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value
    return document


def told(faults: tuple[tuple[str, Any], ...]) -> set[str]:
    return {fault.pointer for fault in lint(spec_with(faults)).faults}


def test_the_sound_spec_is_sound() -> None:
    assert told(()) == set()


@pytest.mark.parametrize("fault", INDEPENDENT, ids=lambda fault: fault[0])
def test_each_of_them_is_a_fault(fault: tuple[str, Any]) -> None:
    assert TOLD_AT.get(fault[0], fault[0]) in told((fault,))


def test_thirteen_faults_are_thirteen() -> None:
    for start in range(len(INDEPENDENT) - 12):
        thirteen = INDEPENDENT[start : start + 13]
        assert {TOLD_AT.get(pointer, pointer) for pointer, _ in thirteen} <= told(thirteen)


def test_no_fault_hides_another() -> None:
    for pair in itertools.combinations(INDEPENDENT, 2):
        alone = {pointer for fault in pair for pointer in told((fault,))}
        assert alone <= told(pair), pair


def test_one_bad_word_of_a_command_hides_nothing_about_the_others() -> None:
    document = spec_with((("/spec/entrypoint", ["torchrun", 3, "train.py"]),))
    assert {fault.pointer for fault in lint(document).faults} >= {"/spec/entrypoint/1", "/spec/entrypoint"}


def test_a_replica_too_large_for_the_devices_hides_no_other_fault_of_the_layout() -> None:
    document = spec_with((("/spec/parallelism/tp", 3), ("/spec/parallelism/pp", 64), ("/spec/parallelism/dp", 7)))
    assert {"/spec/resources/nodes", "/spec/parallelism/dp"} <= {fault.pointer for fault in lint(document).faults}


def test_faults_beyond_the_limit_are_counted_aloud() -> None:
    document = spec_with(
        tuple((f"/spec/env/{number}X", "a") for number in range(128))
        + tuple((f"/metadata/labels/x{number}", number) for number in range(128))
    )
    faults = lint(document).faults
    assert len(faults) == MAX_FAULTS + 1
    assert faults[-1].message == f"{256 - MAX_FAULTS} more faults"
