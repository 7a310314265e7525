"""A layout trains as a single process does, hands its checkpoint on, and survives an eviction.

Here one row for each field of a layout, each family, two samples in a micro-batch and bf16; every layout that
Megatron-core runs on gloo by `make test-matrix`.
"""

import os
import signal
import subprocess
from collections.abc import Callable
from itertools import combinations
from typing import Any

import msgspec
import pytest

from controlplane.protocol.layout_checks import layout_faults
from controlplane.protocol.rank import CaughtUp
from controlplane.protocol.spec import Model, Parallelism, Training, ranks_per_replica
from tests.forks import command
from tests.integration.trainer.cluster import Cluster, tiny_config
from tests.integration.trainer.test_recovery import assert_as_undisturbed, wait_together
from trainer.matrix import CASES, MODELS, TRAINING, Row
from trainer.reference import Losses

# The whole matrix is one setup: a minute on two idle cores.
pytestmark = [pytest.mark.trainer, pytest.mark.timeout(400)]
Make = Callable[..., Cluster]

# Each field, with what it does not go without.
FIELDS: dict[str, dict[str, Any]] = {
    "tp": {"tp": 2},
    "pp": {"pp": 2},
    "vp": {"pp": 2, "vp": 2},
    "cp": {"cp": 2},
    "replica_dp": {"replica_dp": 2},
    "ep": {"replica_dp": 2, "ep": 2},
    "sequence_parallel": {"tp": 2, "sequence_parallel": True},
    "distributed_optimizer": {"replica_dp": 2, "distributed_optimizer": True},
}
WHOLE = "HOLDFAST_TEST_MATRIX" in os.environ
SHORT = ["gpt pp2 vp2", "gpt tp2 sp", "gpt cp2", "gpt replica_dp2 do", "bert pp2 vp2", "moe ep2 replica_dp2"]
SHORT += ["gpt pp2 cp2 mb2", "moe pp2 ep2 replica_dp2 bf16"]
NAMES = [case.name for case in CASES if WHOLE or case.name in SHORT]
# One of each kind of state that is cut up: chunks, experts, shards with a norm of ours, BERT;
# and four whose data-parallel ranks share the optimizer's out.
BACK = ["gpt pp2 vp2", "gpt tp2 sp", "gpt pp2 vp2 cp2 replica_dp2", "bert pp2 vp2", "moe ep2 replica_dp2"]
BACK += ["gpt tp2 pp2 vp2 replica_dp2 sp do", "gpt cp2 replica_dp2 do", "moe pp2 ep2 replica_dp2 do"]
BACK += ["gpt replica_dp2 do"]
BACK = [name for name in BACK if name in NAMES]
# Five micro-batches: the shares of two replicas, and those inside a replica, are uneven.
SLOW = Training(steps=30, global_batch=5, step_delay_s=0.06)
CHUNKED = Model(layers=4, hidden=32, heads=2, sequence_length=32)
MOE = Model(family="moe", layers=2, hidden=32, heads=2, ffn_hidden=64, experts=4, sequence_length=32)
EVICTED = {
    "vp2": {"parallelism": Parallelism(pp=2, vp=2), "model": CHUNKED},
    "cp2 replica_dp2": {"parallelism": Parallelism(cp=2, replica_dp=2)},
    "replica_dp2 do": {"parallelism": Parallelism(replica_dp=2, distributed_optimizer=True)},
    "moe ep2": {"parallelism": Parallelism(replica_dp=2, ep=2), "model": MOE},
}
EVICTED = {name: parts for name, parts in EVICTED.items() if WHOLE or name in ("vp2", "moe ep2")}

RUN_ALL = """
import sys
from pathlib import Path
import msgspec
from controlplane.protocol.launch import TrainerConfig
from trainer import device
device.prepare_import()
import trainer.engine
from trainer.reference import reference_losses
folder = Path(sys.argv[1])
for number in range(int(sys.argv[2])):
    config = msgspec.json.decode((folder / f"{number}.json").read_bytes(), type=TrainerConfig)
    (folder / f"{number}.out").write_bytes(msgspec.json.encode(reference_losses(config)))
"""


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """One process imports Megatron once and forks the ranks of every layout."""
    out = tmp_path_factory.mktemp("matrix") / "rows.json"
    arguments = ["--only", *NAMES, "--back", *BACK, "--out", str(out)]
    done = subprocess.run(
        command("-m", "trainer.matrix", *arguments), capture_output=True, text=True, timeout=500, check=False
    )
    assert out.exists(), done.stderr[-4000:]
    return {row.name: row for row in msgspec.json.decode(out.read_bytes(), type=list[Row])}


def test_each_field_each_family_two_samples_and_each_dtype_have_a_row_of_the_short_run() -> None:
    rows = [case for case in CASES if case.name in SHORT]
    assert len(rows) == len(SHORT)
    for each in ("family", "micro_batch", "dtype"):
        assert {getattr(case, each) for case in rows} == {getattr(case, each) for case in CASES}, each
    plain = Parallelism()
    for field in FIELDS:
        assert any(getattr(case.layout, field) != getattr(plain, field) for case in rows), field


def test_a_checkpoint_of_every_kind_of_state_is_loaded_by_a_single_process_in_the_short_run() -> None:
    rows = [case for case in CASES if case.name in SHORT and case.name in BACK]
    assert {case.family for case in rows} == set(MODELS)
    for field in ("tp", "pp", "vp", "replica_dp", "ep", "sequence_parallel", "distributed_optimizer"):
        assert any(getattr(case.layout, field) != getattr(Parallelism(), field) for case in rows), field


def test_any_two_fields_that_a_family_takes_together_meet_in_a_row() -> None:
    plain = Parallelism()
    for family, model in MODELS.items():
        rows = [case.layout for case in CASES if case.family == family]
        for pair in combinations(FIELDS, 2):
            wanted = {**FIELDS[pair[0]], **FIELDS[pair[1]]}
            if family == "moe" and "tp" in wanted:
                wanted["sequence_parallel"] = True
            if any(layout_faults(Parallelism(**wanted), model, TRAINING, built_in=True)):
                continue
            met = [row for row in rows if all(getattr(row, field) != getattr(plain, field) for field in pair)]
            assert met, (family, pair)


@pytest.mark.parametrize("name", NAMES)
def test_a_layout_trains_as_a_single_process_does(matrix: dict[str, Row], name: str) -> None:
    difference = matrix[name].difference
    assert difference is not None, "it did not run"
    assert difference <= matrix[name].tolerance


@pytest.mark.parametrize("name", BACK)
def test_a_single_process_goes_on_from_its_checkpoint(matrix: dict[str, Row], name: str) -> None:
    back = matrix[name].back
    assert back is not None, "it did not run"
    assert back <= matrix[name].tolerance


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """The losses of one replica of each layout with nothing going wrong; of a single process
    where that draws the same weights, with neither stages nor experts spread over ranks."""
    folder = tmp_path_factory.mktemp("undisturbed")
    fast = msgspec.structs.replace(SLOW, step_delay_s=0.0)
    number_of: dict[bytes, int] = {}
    of_name = {}
    for name, parts in EVICTED.items():
        config = msgspec.structs.replace(tiny_config(folder, training=fast, **parts), store="127.0.0.1:1")
        if config.parallelism.pp == config.parallelism.ep == 1:
            config = msgspec.structs.replace(config, parallelism=Parallelism())
        of_name[name] = number_of.setdefault(msgspec.json.encode(config), len(number_of))
    for encoded, number in number_of.items():
        (folder / f"{number}.json").write_bytes(encoded)
    subprocess.run(command("-c", RUN_ALL, str(folder), str(len(number_of))), check=True, timeout=300)
    return {
        name: msgspec.json.decode((folder / f"{number}.out").read_bytes(), type=Losses).losses
        for name, number in of_name.items()
    }


@pytest.mark.parametrize("name", EVICTED)
def test_a_replica_of_the_layout_is_evicted_and_rejoins(
    cluster: Make, undisturbed: dict[str, list[float]], name: str
) -> None:
    run = cluster(training=SLOW, **EVICTED[name])
    run.start(0, 1)
    run.wait_committed(3, 0, 1)
    run.signal(1, signal.SIGKILL, rank=1)
    run.wait(lambda: run.epoch == 2, "a view without replica 1")
    run.start(1, incarnation=2)
    together = wait_together(run, 1)
    assert len(run.of(CaughtUp, 1)) == run.world == ranks_per_replica(run.config.parallelism)
    assert_as_undisturbed(run, undisturbed[name], until=together)
    layout = run.config.parallelism
    # The hash has the optimizer in it, which a distributed one shares out among the ranks.
    if layout.pp == layout.ep == 1 and not layout.distributed_optimizer:
        by_step = {step: hashes for (step, _rank), hashes in run.hashes().items()}
        assert all(hashes == by_step[step] for (step, _rank), hashes in run.hashes().items())
