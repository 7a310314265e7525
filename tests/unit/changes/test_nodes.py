"""What nodes tell of themselves: their checks, input that was not taken, rank hosts that end."""

import pytest

from controlplane.changes.answers import frees
from controlplane.changes.hearing import hear
from controlplane.changes.kinds import Amend, Change, Count, Free, Publish, Raise, Settle, Wake
from controlplane.changes.speaker import Speaker
from controlplane.policy.signals.nodes import NodeUnfit
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import EventBody, HostExited, InputRefused, NodeCheck, NodeChecked
from controlplane.protocol.launch import RankRef
from controlplane.simulator.load import load_nodes
from controlplane.simulator.rows import JOB_ID

from .builders import NODES, World, placed

HELD, FREE = NODES[1], NODES[4]
OLD = NodeCheck("driver", "version 535 is older than 570")
FULL = NodeCheck("storage", "9 MiB are free")
FULLER = NodeCheck("storage", "8 MiB are free")
RANK = RankRef(JOB_ID, 1, 1, 1, 0)


def does(world: World, body: EventBody, node: str = HELD) -> list[Change]:
    changes = hear(world.store, body, Speaker(node, node, 990.0))
    world.store.commit(changes, seen_s=990.0)
    return changes


def unhealthy(world: World) -> dict[str, str]:
    return {node.id: node.unhealthy for node in load_nodes(world.rows, 1000.0, False) if node.unhealthy}


def test_a_node_that_fails_its_checks_is_found_once_and_nothing_is_started_there() -> None:
    world = placed()
    (raised,) = does(world, NodeChecked((OLD, FULL)))
    assert isinstance(raised, Raise) and isinstance(raised.found, NodeUnfit)
    assert (raised.found.node_id, raised.found.checks) == (HELD, "driver, storage")
    assert unhealthy(world) == {HELD: "driver: version 535 is older than 570; storage: 9 MiB are free"}
    assert does(world, NodeChecked((OLD, FULL))) == []
    assert len(world.rows.signals) == 1


def test_other_words_of_the_same_checks_are_kept_and_are_no_news() -> None:
    world = placed()
    does(world, NodeChecked((FULL,)))
    (amended,) = does(world, NodeChecked((FULLER,)))
    assert isinstance(amended, Amend) and amended.sentence == ""
    assert unhealthy(world) == {HELD: "storage: 8 MiB are free"}


def test_another_check_that_fails_is_news() -> None:
    world = placed()
    does(world, NodeChecked((FULL,)))
    (amended,) = does(world, NodeChecked((FULL, OLD)))
    assert isinstance(amended, Amend) and "driver: version 535" in amended.sentence
    assert len(world.rows.signals) == 1


def test_a_node_that_passes_again_takes_work_and_who_waits_for_one_is_looked_at() -> None:
    world, woken = placed(), list[str]()
    does(world, NodeChecked((FULL,)))
    world.store.on_wake = lambda job: woken.append("")
    changes = does(world, NodeChecked(()))
    assert [type(change) for change in changes] == [Settle, Free]
    assert [frees(change) for change in changes] == [False, True]
    assert (unhealthy(world), world.rows.signals, woken) == ({}, {}, [""])


def test_a_node_that_was_found_fit_and_is_so_still_changes_nothing() -> None:
    assert does(placed(), NodeChecked(())) == []


def test_what_a_node_says_of_its_checks_is_short() -> None:
    world = placed()
    does(world, NodeChecked((NodeCheck("external", "x" * 900),)))
    assert len(unhealthy(world)[HELD]) == 300


def test_a_failing_check_outlives_the_job_and_is_another_nodes_affair() -> None:
    world = placed()
    does(world, NodeChecked((FULL,)), FREE)
    does(world, NodeChecked(()), HELD)
    assert set(unhealthy(world)) == {FREE}
    assert world.store.findings() == []


def test_what_an_agent_left_out_of_its_journal_is_counted_and_told_of_the_node() -> None:
    counted, said = does(placed(), InputRefused(None, 3, "no JSON"))
    assert counted == Count(HELD, "refused_at_node", "no JSON", 3)
    assert isinstance(said, Publish) and (said.kind, said.beside) == ("node.refused", HELD)
    assert "left 3 event(s) out: no JSON" in said.sentence


@pytest.mark.parametrize(("count", "closed", "says"), [(1, False, "1 message of"), (2, True, "2 messages of")])
def test_what_an_agent_did_not_take_of_a_rank_is_told_to_its_job(count: int, closed: bool, says: str) -> None:
    counted, said = does(placed(), InputRefused(RANK, count, "no such tag", closed))
    assert counted == Count(HELD, "refused_at_node", "no such tag", count)
    assert isinstance(said, Publish) and (said.kind, said.beside) == ("rank.refused", HELD)
    assert says in said.sentence and "rank 0 of replica 1" in said.sentence
    assert ("closed its connection" in said.sentence) is closed
    assert said.data == {"count": count, "reason": "no such tag", "closed": closed, "rank": 0}


def test_no_node_speaks_of_another_ones_rank() -> None:
    with pytest.raises(IdentityMismatch):
        does(placed(), InputRefused(RANK, 1, "no such tag"), FREE)


def test_a_rank_host_that_ends_ends_no_rank_and_wakes_its_job() -> None:
    world = placed()
    woken, said = does(world, HostExited(JOB_ID, 7))
    assert woken == Wake() and said == Publish("host.exited", f"The rank host on {HELD} ended with code 7.")
    assert world.rows.replicas[1].exited == set()


def test_a_rank_host_on_a_spare_is_the_jobs_and_on_any_other_node_nobodys() -> None:
    world = placed()
    with pytest.raises(IdentityMismatch):
        does(world, HostExited(JOB_ID, 0), FREE)
    world.rows.nodes[FREE].reserved_for = JOB_ID
    assert does(world, HostExited(JOB_ID, 0), FREE)
