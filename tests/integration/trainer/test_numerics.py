"""A refused result is computed again in place: what came out is told, nothing counts twice."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
import pytest

from controlplane.protocol.launch import RankRef, TrainerConfig
from controlplane.protocol.rank import DeterminismReport, FromRank, InjectFault, NumericsReport
from controlplane.protocol.spec import Numerics, Parallelism, Training
from tests.integration.trainer.cluster import Cluster, tiny_config
from tests.integration.trainer.test_recovery import assert_as_undisturbed, wait_some_steps

pytestmark = pytest.mark.trainer
Make = Callable[..., Cluster]
VALIDATE = Numerics(rerun="validate_results", check_spike=True)


def numeric(wish: Numerics, **fields: object) -> Training:
    return Training(steps=36, global_batch=6, numerics=wish, **fields)  # type: ignore[arg-type]


def test_a_transient_error_is_told_and_costs_neither_the_replica_nor_a_sample(
    cluster: Make, reference: list[float]
) -> None:
    run = cluster(training=numeric(VALIDATE, step_delay_s=0.02))
    run.start(0, 1, 2)
    run.wait_committed(3, 0, 1, 2)
    # One rank: told to both, the other may take it in the second run, which nothing survives.
    run.tell(2, InjectFault("nan"), rank=1)
    run.wait(lambda: bool(run.of(NumericsReport)), "a report")
    # A view change in the middle of a step: more is added to sums that were computed twice.
    run.announce("again")
    afterwards = wait_some_steps(run)
    found = run.of(NumericsReport)
    assert {(report.check, report.diagnosis) for report in found} == {("gradient_not_finite", "transient")}
    assert {report.first_result for report in found} == {"nan"}
    assert {gone.exit_code for gone in run.gone.values()} <= {0}
    assert_as_undisturbed(run, reference, until=afterwards)


def test_every_step_is_the_same_when_computed_twice_and_counts_once(cluster: Make, reference: list[float]) -> None:
    run = cluster(training=numeric(Numerics(rerun="report_determinism_stats")))
    run.start(0, 1)
    run.wait_committed(3, 0, 1)
    run.announce("again")
    run.wait_all_done()
    last = [run.of(DeterminismReport, replica, rank)[-1] for replica in (0, 1) for rank in (0, 1)]
    assert {(report.steps, report.identical_steps, report.largest_difference) for report in last} == {(36, 36, 0.0)}
    assert_as_undisturbed(run, reference)


# --- one rank, no job around it --------------------------------------------------------


class _Broken:
    """Faults of a device that spoils its first gradient element, one value a run."""

    def __init__(self) -> None:
        self.slow_s = 0.0
        self.values: list[float] = []

    def at_compute(self) -> None:
        """Never hangs."""

    def take_nan(self) -> bool:
        """The engine's hook; the value is written here."""
        if self.values:
            value = self.values.pop(0)
            if value != 0.0:
                next(iter(self.engine._buffers())).grad_data[0] = value  # type: ignore[attr-defined]
        return False


NAN, INF = float("nan"), float("inf")
# name: (spec, what the device adds to the first and the second run, exit code, diagnosis)
CASES: dict[str, tuple[Numerics, list[float], int, str | None]] = {
    "good the second time": (VALIDATE, [NAN, 0.0], 0, "transient"),
    "the same again": (VALIDATE, [NAN, NAN], 16, "persistent"),
    "wrong in two ways": (VALIDATE, [NAN, INF], 17, "failed_validation"),
    "without a second run": (Numerics(), [NAN], 16, None),
    "not checked": (Numerics(check_nan=False), [NAN], 0, None),
    "differs when computed twice": (Numerics(rerun="report_determinism_stats"), [1.0, 0.0], 0, "0 of 1"),
}


def _one_rank(config: TrainerConfig) -> dict[str, tuple[int, list[str], bool]]:
    """In a child: for each case, one step on a broken device, then the same step on a good one."""
    from trainer import device

    device.prepare_import()
    from torch.distributed import TCPStore

    from trainer.config import RankSettings
    from trainer.engine import Engine
    from trainer.errors import TrainerError
    from trainer.parallel import enter_inner_world

    ref = RankRef("numerics", 1, 0, 1, 0)
    settings = RankSettings(ref=ref, world_size=1, device_index=0, agent_socket="", config=config)
    my_device = device.activate(0)
    enter_inner_world(settings, TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    found = {}
    for name, (wish, values, _code, _diagnosis) in CASES.items():
        broken = _Broken()
        engine = Engine(msgspec.structs.replace(config, training=numeric(wish, hash_every_steps=0)), my_device, broken)  # type: ignore[arg-type]
        broken.engine = engine  # type: ignore[attr-defined]
        said: list[FromRank] = []
        engine.rerun.connect(said.append, epoch=lambda: 3)
        code = 0
        engine.clear()
        engine.compute(35, range(2))
        held = [tensor.clone() for tensor in engine.raw_sums()]
        broken.values = list(values)
        said.clear()
        try:
            engine.compute(35, range(2, 4))
        except TrainerError as error:
            code = int(error.exit_code)
        if code:
            found[name] = (code, [_words(report) for report in said], False)
            continue
        kept = [tensor.clone() for tensor in engine.raw_sums()]
        for tensor, before in zip(engine.raw_sums(), held, strict=True):
            tensor.copy_(before)
        engine.compute(35, range(2, 4))
        same = all(bool((a == b).all()) for a, b in zip(kept, engine.raw_sums(), strict=True))
        found[name] = (code, [_words(report) for report in said], same)
    return found


def _words(report: FromRank) -> str:
    if isinstance(report, DeterminismReport):
        return f"{report.identical_steps} of {report.steps}"
    assert isinstance(report, NumericsReport)
    return report.diagnosis


def test_the_second_run_decides_how_a_rank_goes_on_and_what_it_keeps_counts_once(tmp_path: Path) -> None:
    config = msgspec.structs.replace(tiny_config(tmp_path, parallelism=Parallelism()), store="127.0.0.1:1", replicas=1)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as child:
        found = child.submit(_one_rank, config).result(timeout=100)
    for name, (_wish, _values, code, diagnosis) in CASES.items():
        assert (found[name][0], found[name][1][:1]) == (code, [diagnosis] if diagnosis else []), name
    assert found["good the second time"][2] and found["differs when computed twice"][2]
