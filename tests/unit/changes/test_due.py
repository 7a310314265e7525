"""Deadlines of findings and of connections: what follows when a time is over."""

from controlplane.changes.due.findings import FOR_PEOPLE_S, NOT_KNOWN, report_unknown, settle_old
from controlplane.changes.due.kinds import CloseSession
from controlplane.changes.due.sessions import WEB_STALE_S, close_dead
from controlplane.changes.kinds import Amend, Settle
from controlplane.policy.signals.nodes import SignatureRejected
from controlplane.simulator.load import load

from .builders import NODES, World, finding, training

TOMORROW = "fan_stopped"


def test_what_is_for_people_is_settled_an_hour_after_it_was_seen() -> None:
    world = training()
    old = finding(world, SignatureRejected.KIND, node_id=NODES[0])
    finding(world, "rank_exit", replica=0, incarnation=1, rank=0)
    world.kernel.now_s = 900.0 + FOR_PEOPLE_S
    assert list(settle_old(world.store)) == []
    world.kernel.now_s += 1.0
    assert list(settle_old(world.store)) == [Settle((old,), "not repeated for an hour")]
    world.store.commit(settle_old(world.store))
    assert [row.kind for row in world.rows.signals.values()] == ["rank_exit"], "a rule ends it, however old it is"


def test_a_kind_of_a_newer_release_is_reported_once_and_no_rule_sees_it() -> None:
    world = training()
    new = finding(world, TOMORROW, node_id=NODES[1], evidence={"fan": 3})
    (change,) = report_unknown(world.store)
    assert isinstance(change, Amend) and (change.signal, change.evidence) == (new, {"fan": 3, NOT_KNOWN: True})
    said = f"This release knows no finding of the kind {TOMORROW}: nothing is decided about it. Upgrade."
    assert change.sentence == said
    world.store.commit([change])
    assert list(report_unknown(world.store)) == []
    assert new in world.rows.signals, "who knows it may still decide"
    assert load(world.rows, 1000.0, blind=False).signals == ()


def test_a_kind_that_is_known_is_not_reported_so() -> None:
    world = training()
    finding(world, "xid", node_id=NODES[1], device_index=0, value=48.0)
    assert list(report_unknown(world.store)) == []


def connected() -> World:
    """All by web-1, at 1,000 s."""
    world = training()
    world.rows.webs = {"web-1": 1000.0}
    for node in world.rows.nodes.values():
        node.open("web-1", 1000.0)
    return world


def test_connections_of_a_web_process_that_ended_are_closed_and_those_of_another_are_not() -> None:
    world = connected()
    world.kernel.now_s += WEB_STALE_S
    assert list(close_dead(world.store)) == [], "it may have ended, or be late"
    world.kernel.now_s += 1.0
    world.rows.webs["web-2"] = world.kernel.now_s
    for node in world.rows.nodes.values():
        if node.id != NODES[2]:
            node.open("web-2", 1000.0)
    (change,) = close_dead(world.store)
    assert change == CloseSession(NODES[2], str(world.rows.nodes[NODES[2]].session))
    world.store.commit([change])
    assert not world.rows.nodes[NODES[2]].connected
    assert list(close_dead(world.store)) == []
    gone = next(node for node in load(world.rows, world.kernel.now_s + 4.0, blind=True).nodes if node.id == NODES[2])
    assert (gone.connected, gone.silent_s) == (False, 4.0), "a closed connection is evidence of its own"


def test_one_that_was_opened_just_now_may_be_of_a_process_that_has_not_been_heard_yet() -> None:
    world = connected()
    world.rows.webs = {}
    world.kernel.now_s += WEB_STALE_S
    assert list(close_dead(world.store)) == []
    world.kernel.now_s += 0.1
    assert len(list(close_dead(world.store))) == len(NODES)
