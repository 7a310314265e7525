"""A title is short, whole words, and names what failed; unrelated findings have no common cause."""

import pytest

from controlplane.policy import titles
from controlplane.policy.causes import NEAR_S, same_cause
from controlplane.policy.rules.registry import RULES
from controlplane.protocol.states import Phase
from tests.unit.policy.builders import NOW_S, change, decisions, only, running, signal

LONG = (
    "replica 1: rank 0 on node-5 ended with code 70: an exception ended it; the traceback is in its log. 2 replicas"
    " continue; replica 1 starts again on node-1."
)


def overdue(number: int, rank: int, **evidence: object):
    said = {"phase": Phase.COMPUTE, "step": 7, "age_s": 25.0} | evidence
    return signal(
        "rank_overdue", number, replica=0, incarnation=1, rank=rank, value=25.0, threshold=20.0, evidence=said
    )


@pytest.mark.parametrize("text", [LONG, LONG.replace(". ", ", "), "x" * 300, "a word " * 40, "rank 1 ended", ""])
def test_a_title_has_80_characters_at_most_whole_words_and_a_capital_letter(text):
    title = titles.short(text)
    assert len(title) <= titles.TITLE_MAX
    assert title[:1] == title[:1].upper()
    if " " in text:
        rest = text[len(title) : len(title) + 1]
        assert not rest.isalnum(), f"cut within a word: {title!r}"


def test_a_killed_rank_is_named_with_its_node_and_signal():
    dead = signal("rank_exit", replica=1, incarnation=1, rank=0, node_id="n1", value=-9.0)
    decision = only(running(signals=(dead,)), "replica_failure")
    assert decision.title == "Rank 0 of replica 1 on node-1 was killed (SIGKILL)"
    assert decision.sentence.startswith("Replica 1: rank 0")
    assert "2 replicas continue" in decision.sentence


def test_one_is_not_plural():
    dead = [signal("rank_exit", n, replica=n, incarnation=1, rank=0, node_id=f"n{n}", value=-9.0) for n in (1, 2)]
    told = decisions(running(signals=tuple(dead)), rule="replica_failure")
    assert ["1 replica continues" in decision.sentence for decision in told] == [True, True]
    assert titles.number_of(1, "node") == "1 node"
    assert titles.number_of(2, "node") == "2 nodes"


def test_of_two_equal_ranks_that_hang_both_are_named():
    decision = only(running(signals=(overdue(1, 0), overdue(2, 1))), "replica_failure")
    assert decision.title == "Ranks 0 and 1 of replica 0 hang"
    assert "ranks 0 and 1 made no progress for 25.0 s" in decision.sentence
    assert decision.evidence["ranks"] == "0, 1"


def test_the_first_of_several_ranks_to_be_overdue_is_not_blamed_before_the_others_are_heard_of():
    """A stage that waits for its neighbour computes too, and may be told a moment before it."""
    decision = only(running(signals=(overdue(1, 0),)), "replica_failure")
    assert decision.title == "Replica 0 hangs, rank 0 overdue first"
    assert "rank 0 made no progress for 25.0 s" in decision.sentence


@pytest.mark.parametrize(
    "other", [{"phase": Phase.EXCHANGE}, {"phase": Phase.VIEW_CHANGE}, {"step": 8}], ids=["waits", "view", "ahead"]
)
def test_the_rank_that_computes_is_named_and_not_the_one_that_waits_for_it_or_is_ahead(other):
    decision = only(running(signals=(overdue(1, 0), overdue(2, 1, **other))), "replica_failure")
    assert decision.title == "Rank 0 of replica 0 hangs"
    assert decision.evidence["rank"] == 0


def test_an_xid_reads_as_english():
    found = signal("xid", node_id="n3", device_index=0, value=79.0)
    decision = only(running(signals=(found,)), "device_fault")
    assert decision.title == "XID 79 on device 0 of node-3"
    assert "on device 0 of node-3: the node takes no new work (judged by NVIDIA); to do: " in decision.sentence


def test_an_alarm_is_titled_by_its_device():
    alarm = signal("device_risk", node_id="n1", device_index=0, value=0.9, threshold=0.5)
    decision = only(running(signals=(alarm,)), "device_risk")
    assert decision.sentence.startswith("Device 0 of node-1 scores 0.90")
    assert decision.title in ("Device 0 of node-1 is at risk", "")


def test_an_order_has_a_rule_and_a_sentence_of_its_own():
    snapshot = running()
    told = change(
        snapshot,
        replicas=tuple(
            change(r, ordered_out="user:ada: rack 7", ordered_s=NOW_S - 1.0, exited_ranks=2) if r.index == 2 else r
            for r in snapshot.replicas
        ),
    )
    (decision,) = decisions(told)
    assert (decision.rule, decision.title) == ("ordered_eviction", "Replica 2 evicted at the request of user:ada")
    assert decision.sentence.startswith("Replica 2 leaves as requested (user:ada: rack 7). 2 replicas continue;")
    wait = next(other for other in decision.alternatives if other.action == "wait")
    assert "come back by itself" not in wait.why_not
    assert not next(rule.remedial for rule in RULES if rule.name == "ordered_eviction"), "in every mode"


def test_findings_about_other_nodes_slots_and_devices_have_other_causes():
    kill = signal("rank_exit", 1, replica=1, rank=0, node_id="n4", device_index=0)
    for other in (
        signal("xid", 2, node_id="n2", device_index=1, value=79.0),
        signal("rank_exit", 3, replica=0, rank=0, node_id="n5", device_index=0),
        signal("xid", 4, node_id="n4", device_index=1, value=79.0, seen_s=kill.seen_s - NEAR_S - 1.0),
        signal("outer_error", 5, replica=0, seen_s=kill.seen_s + NEAR_S + 1.0),
    ):
        assert not same_cause((kill,), (other,)), other.kind
        assert not same_cause((other,), (kill,)), other.kind


def test_a_broken_exchange_makes_no_two_deaths_one_cause():
    """Each of two replicas that die within a recovery breaks an exchange."""
    first = (signal("rank_exit", 1, replica=0, rank=0, node_id="n1"), signal("outer_error", 2, replica=2))
    second = (signal("rank_exit", 3, replica=1, rank=0, node_id="n4"), signal("outer_error", 4, replica=2))
    assert not same_cause(first, second)
    assert not same_cause(first[:1], second)
    assert same_cause(first[1:], second), "an exchange broke, and now it is told who died"


def test_the_same_slot_device_node_at_once_and_the_broken_exchange_are_one_cause():
    kill = signal("rank_exit", 1, replica=1, rank=0, node_id="n4", device_index=0)
    for other in (
        signal("rank_exit", 2, replica=1, rank=1, node_id="n6", device_index=0, seen_s=NOW_S + 900.0),
        signal("device_lost", 3, node_id="n4", device_index=0, seen_s=NOW_S - 900.0),
        signal("xid", 4, node_id="n4", device_index=1, value=79.0),
        signal("node_silent", 5, node_id="n4", seen_s=NOW_S + 900.0),
        signal("outer_error", 6, replica=0),
    ):
        assert same_cause((kill,), (other,)), other.kind
