"""A node that was quarantined does not end that by choosing when its events arrive."""

import pytest

from controlplane.fleet.models import Node
from controlplane.fleet.services import cordon, take_out, transition_node, uncordon
from controlplane.protocol import frames
from controlplane.protocol.samples import XidEvent
from controlplane.protocol.states import NodeState
from controlplane.recovery import doubts, ingest
from controlplane.recovery.load_nodes import node_facts
from controlplane.recovery.models import Signal
from tests.integration.backend.builders import Fleet, make_fleet

pytestmark = pytest.mark.django_db(transaction=True)
WRONG = "persistent wrong numbers: its results are not reproduced (numerics)"


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setattr(doubts, "DEAF_S", -1.0)
    return make_fleet(1)


def row() -> Node:
    return Node.objects.get(name="n1")


def event(seq: int) -> frames.AgentEvent:
    return frames.AgentEvent(seq, 0.0, frames.XidSeen(XidEvent(index=0, xid=13)))


def leaves_a_gap(fleet: Fleet) -> None:
    for _ in range(2):
        ingest.apply_events(row().id, "web.n1", (event(fleet.seqs["n1"] + 2),))
    assert row().deaf


def closes_it(fleet: Fleet) -> None:
    seq = fleet.seqs["n1"]
    ingest.apply_events(row().id, "web.n1", (event(seq + 1), event(seq + 2)))
    assert not row().deaf
    assert not Signal.objects.filter(kind="node_deaf", settled_at=None).exists()


def test_a_gap_and_its_end_lift_no_quarantine_of_before(fleet: Fleet) -> None:
    transition_node(row(), NodeState.QUARANTINED, WRONG)
    leaves_a_gap(fleet)
    closes_it(fleet)
    assert (row().state, row().state_reason) == ("quarantined", WRONG)


def test_what_is_found_while_its_events_are_missing_stays(fleet: Fleet) -> None:
    leaves_a_gap(fleet)
    assert node_facts(None)[0].state == NodeState.CORDONED, "policy may still quarantine it"
    take_out(row(), NodeState.QUARANTINED, WRONG)
    assert node_facts(None)[0].state == NodeState.QUARANTINED
    closes_it(fleet)
    assert row().state == "quarantined"
    assert WRONG in row().state_reason


def test_one_quarantined_again_after_a_person_returned_it_stays(fleet: Fleet) -> None:
    leaves_a_gap(fleet)
    uncordon(row().id, reason="r", actor="user:ada")
    transition_node(row(), NodeState.QUARANTINED, WRONG)
    closes_it(fleet)
    assert row().state == "quarantined"


@pytest.mark.parametrize("state", [NodeState.CORDONED, NodeState.DEGRADED])
def test_it_goes_back_to_where_it_was_and_no_further(fleet: Fleet, state: NodeState) -> None:
    if state == NodeState.CORDONED:
        cordon(row().id, reason="its fan is changed", actor="user:ada")
    else:
        transition_node(row(), state, "its fan is loud")
    reason = row().state_reason
    leaves_a_gap(fleet)
    assert row().state == "quarantined"
    closes_it(fleet)
    assert (row().state, row().state_reason, row().before_deaf) == (state, reason, None)


def test_one_that_was_only_deaf_takes_work_again(fleet: Fleet) -> None:
    leaves_a_gap(fleet)
    assert row().state == "quarantined"
    closes_it(fleet)
    assert (row().state, row().before_deaf) == ("ready", None)
