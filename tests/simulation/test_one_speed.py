"""Seeds in which silence alone would end a healthy replica, were it not left out first (P18).

A fifth of all messages is lost and a fifth repeated. Each seed is run with the policy as it is, and with the old
one, in which a witness was enough to end a silent replica at once: there it must fail, or it guards nothing.
"""

import msgspec
import pytest

from controlplane.policy import failures
from controlplane.policy.config import PolicyConfig
from controlplane.policy.proved import Failure
from controlplane.policy.silence import node_silent
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact
from controlplane.simulator.world import World

# (seed, how many replicas stand by)
SEEDS = ((950001, 0), (950011, 1), (950012, 0))

each_seed = pytest.mark.parametrize(("seed", "standing_by"), SEEDS)


def one_speed(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    """Silence as it was judged before there were two speeds."""
    found = node_silent(snapshot, config, replica)
    return None if found is None else msgspec.structs.replace(found, reversible=False)


def harsh(seed: int, standing_by: int) -> tuple[str, ...]:
    """What the checkers tell of one run."""
    world = World(seed, standing_by=standing_by)
    world.network.loss = world.network.repeat = 0.2
    world.network.extra_delay_s = 0.3
    return world.run().violations


@each_seed
def test_a_healthy_replica_that_was_only_not_heard_is_not_ended(seed: int, standing_by: int) -> None:
    assert harsh(seed, standing_by) == ()


@each_seed
def test_with_one_speed_the_same_seed_ends_a_healthy_replica(
    monkeypatch: pytest.MonkeyPatch, seed: int, standing_by: int
) -> None:
    old = tuple(one_speed if detector is node_silent else detector for detector in failures.INFERRED)
    assert one_speed in old
    monkeypatch.setattr(failures, "INFERRED", old)
    ended = [told for told in harsh(seed, standing_by) if told.partition(" ")[2].startswith("I-evict: healthy")]
    assert ended and all("node_silent" in told for told in ended)
