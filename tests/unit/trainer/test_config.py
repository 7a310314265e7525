"""A job that Megatron could not run is refused before Megatron sees it."""

import msgspec
import pytest

from controlplane.protocol.launch import TrainerConfig
from controlplane.protocol.spec import Checkpoint, Model, Parallelism, Training
from trainer.config import FORK_RANK_VARIABLE, check, fork_from_environment, store_address
from trainer.errors import ConfigInvalid
from trainer.exits import ExitCode

GOOD = TrainerConfig(
    model=Model(),
    parallelism=Parallelism(tp=2, pp=2),
    training=Training(),
    checkpoint=Checkpoint(),
    checkpoint_dir="checkpoints",
    replicas=2,
    store="10.0.0.1:29500",
)


def test_a_good_configuration_passes() -> None:
    check(GOOD, 4)
    assert store_address(GOOD) == ("10.0.0.1", 29500)


@pytest.mark.parametrize(
    ("changes", "world_size", "said"),
    [
        ({}, 3, "is not tp x pp x cp x replica_dp = 4"),
        ({"parallelism": Parallelism(tp=2, replica_dp=2)}, 2, "is not tp x pp x cp x replica_dp = 4"),
        ({"model": Model(layers=3)}, 4, "layers = 3 is not divisible by pp = 2"),
        ({"model": Model(heads=3, hidden=63)}, 4, "heads = 3 is not divisible by tp = 2"),
        ({"model": Model(vocab_size=128)}, 4, "tokens are bytes"),
        ({"training": Training(global_batch=5, micro_batch=2)}, 4, "micro_batch"),
        ({"training": Training(steps=5)}, 4, "warmup_steps"),
        ({"store": "nowhere"}, 4, "host:port"),
    ],
)
def test_faults_are_named(changes: dict[str, object], world_size: int, said: str) -> None:
    with pytest.raises(ConfigInvalid, match=said) as caught:
        check(msgspec.structs.replace(GOOD, **changes), world_size)
    assert caught.value.exit_code is ExitCode.DO_NOT_REQUEUE


def test_all_faults_are_named_at_once() -> None:
    broken = msgspec.structs.replace(GOOD, checkpoint_dir="", replicas=0)
    with pytest.raises(ConfigInvalid, match=r"replicas.*checkpoint_dir"):
        check(broken, 4)


@pytest.mark.parametrize("environment", [{}, {FORK_RANK_VARIABLE: "{"}])
def test_a_spawned_rank_without_its_order_says_so(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigInvalid, match=FORK_RANK_VARIABLE):
        fork_from_environment(environment)
