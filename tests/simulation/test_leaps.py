"""Nodes that stood still: by their clocks much time has passed, and nothing was read."""

import os

import pytest

from agents.core import away, watch
from controlplane.protocol.frames import RankOverdue
from controlplane.simulator.__main__ import main
from controlplane.simulator.world import World


@pytest.mark.parametrize("first", [0, 6] if "HOLDFAST_TEST_RELEASE" in os.environ else [6])
def test_a_leap_of_a_nodes_clock_ends_nobody(first: int) -> None:
    outcomes = [World(seed).run(0, leaps=6) for seed in range(first, first + 6)]
    assert [(o.evictions, o.restarts, o.violations) for o in outcomes] == [(0, 0, ())] * 6
    assert {kind for outcome in outcomes for kind in outcome.faults} == {"clock_leap"}


@pytest.mark.parametrize("seed", [44, 94])
def test_a_replica_in_its_start_keeps_the_time_that_it_had_left(seed: int) -> None:
    assert World(seed).run(orders=4, leaps=4).violations == ()


def test_without_the_time_that_the_agent_gives_its_ranks_healthy_ones_are_found_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The policy finds them void, as they have gone on: nobody is ended all the same."""
    found: list[RankOverdue] = []
    monkeypatch.setattr(watch, "RankOverdue", lambda *given: found.append(RankOverdue(*given)) or found[-1])
    assert [World(seed).run(0, leaps=6).violations for seed in (1, 2)] == [(), ()]
    assert found == []
    monkeypatch.setattr(away, "notice", lambda turn: None)
    assert [World(seed).run(0, leaps=6).violations for seed in (1, 2)] == [(), ()]
    assert found != []


def test_the_command_makes_clocks_leap_beside_other_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "100", "--seeds", "4", "--orders", "4", "--leaps", "4"]) == 0
    assert "clock_leap" in capsys.readouterr().out
