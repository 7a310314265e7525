"""A node that enrolled with a token that holds: no work, whatever happens, until an administrator."""

import pytest

from agents.link.keys import NodeKey
from controlplane.access.models import AuditEntry, JoinToken
from controlplane.dispatch import services as dispatch
from controlplane.fleet import enrolment, identity, selectors
from controlplane.fleet.enrolment import enroll_node
from controlplane.fleet.models import Node
from controlplane.fleet.services import bar_device, return_device, uncordon
from controlplane.jobs.models import Job, Rank
from controlplane.protocol.commands import StopRanks, WarmHost
from controlplane.recovery import doubts, ingest
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import ago
from controlplane.runtime.errors import Conflict
from controlplane.runtime.models import Event
from tests.integration.backend.builders import hello, make_fleet, make_job
from tests.integration.backend.fake_agent import join_token
from tests.integration.backend.held import asked, held_node

pytestmark = pytest.mark.django_db


def now_of(node: Node) -> Node:
    """Its row as it is."""
    return Node.objects.get(pk=node.pk)


def is_held(node: Node) -> bool:
    """It waits, and its reason says for whom."""
    row = now_of(node)
    return row.held and row.state == "quarantined" and "waits for an administrator" in row.state_reason


def speaks(node: Node, **changes: str) -> None:
    """Its agent says hello, in a session that stays open."""
    ingest.open_session(node.id, f"web.{node.name}", hello(node.name, **changes))


def test_it_is_shown_with_its_reason_as_soon_as_it_enrolled() -> None:
    node = held_node("gpu-1")
    assert is_held(node)
    shown = selectors.node_view(now_of(node))
    assert (shown["state"], shown["held"]) == ("quarantined", True)
    token = JoinToken.objects.get()
    assert token.id in shown["state_reason"]
    assert "holdfast node confirm gpu-1" in shown["state_reason"]
    assert selectors.counts_by_state()["quarantined"] == 1
    assert AuditEntry.objects.get(action="node.enroll").data["hold"] is True
    assert Event.objects.filter(kind="node.state", node_id=node.id).exists()


def test_no_job_is_placed_on_it_and_its_devices_are_no_capacity_until_it_is_admitted() -> None:
    make_fleet(3)
    node = held_node("gpu-1")
    speaks(node)
    job = make_job()
    reconcile_job(job.id)
    waits = Job.objects.get(pk=job.id)
    assert waits.state == "pending"
    assert not Rank.objects.exists()
    free = waits.decisions.filter(reason_code="no_capacity").latest("id")
    assert free.evidence["free_devices"] == 6
    doubts.confirm(node.id, actor="user:ada", reason="serial number checked")
    reconcile_job(job.id)
    assert Rank.objects.filter(node=node).exists()


def test_nothing_begins_on_it_whoever_ordered_it() -> None:
    node = held_node("gpu-1")
    dispatch.enqueue(WarmHost("job_x", 1), node_id=node.id)
    dispatch.enqueue(StopRanks("job_x", 1, 0, 1, 0.0, "r"), node_id=node.id)
    assert [row.kind for row in dispatch.deliverable([node.id])] == ["stop_ranks"]
    doubts.confirm(node.id, actor="user:ada", reason="r")
    assert {row.kind for row in dispatch.deliverable([node.id])} == {"stop_ranks", "warm_host"}


def test_hello_again_a_reboot_and_a_restarted_agent_leave_it_held() -> None:
    node = held_node("gpu-1")
    for boot, journal in (("b1", "j1"), ("b1", "j1"), ("b1", "j2"), ("b2", "j3")):
        speaks(node, boot=boot, journal=journal)
        assert is_held(node)


def test_no_recovery_of_its_own_and_no_operator_lifts_it() -> None:
    node = held_node("gpu-1")
    Node.objects.update(gap_since=ago(doubts.DEAF_S + 1))
    doubts.is_stuck(now_of(node), advanced=False, gap=True)
    assert now_of(node).deaf
    doubts.is_stuck(now_of(node), advanced=True, gap=False)
    assert not now_of(node).deaf
    assert is_held(node)
    device = node.devices.get(index=0)
    bar_device(device, "an XID", reset=True)
    return_device(device, "it was reset")
    assert is_held(node)
    with pytest.raises(Conflict, match="holdfast node confirm gpu-1"):
        uncordon(node.id, reason="r", actor="user:bob")
    assert is_held(node)
    enrolment.revoke(node.id, actor="user:ada", reason="r")
    enrolment.restore(node.id, actor="user:ada", reason="r")
    assert is_held(node)


def test_no_other_token_lifts_it_not_even_its_own_for_a_new_key() -> None:
    node, key, second = held_node("gpu-1"), NodeKey.fresh(), NodeKey.fresh()
    own = enrolment.reissue(node.id, actor="user:ada", reason="its disk was lost", ttl_s=600.0)
    assert enroll_node(asked("gpu-1", own.secret, key=key)) == node.id
    assert is_held(node)
    Node.objects.update(doubt="two of it")
    assert enroll_node(asked("gpu-1", join_token(), key=second, old_key=key)) == node.id
    assert now_of(node).public_key == second.public_key
    assert now_of(node).doubt == ""
    assert is_held(node)


def test_a_known_node_that_enrols_again_with_such_a_token_waits_too() -> None:
    first, second = NodeKey.fresh(), NodeKey.fresh()
    node = Node.objects.get(pk=enroll_node(asked("gpu-1", join_token(), key=first)))
    assert (node.state, node.held) == ("ready", False)
    enroll_node(asked("gpu-1", join_token(hold=True), key=second, old_key=first))
    assert is_held(node)


def test_an_answer_that_was_lost_costs_no_second_use_and_undoes_no_admission() -> None:
    token, key = join_token(uses=2, hold=True), NodeKey.fresh()
    node_id = enroll_node(asked("gpu-1", token, key=key))
    assert enroll_node(asked("gpu-1", token, key=key)) == node_id
    assert JoinToken.objects.get().uses_left == 1
    node = Node.objects.get()
    assert is_held(node)
    doubts.confirm(node_id, actor="user:ada", reason="ours")
    assert enroll_node(asked("gpu-1", token, key=key)) == node_id
    assert (now_of(node).state, now_of(node).held) == ("ready", False)


def test_who_admits_it_reads_what_else_is_against_it_and_is_written_down() -> None:
    node = held_node("gpu-1")
    shown = identity.Shown(boot_id="b1", journal_id="j1", machine_id="m1", counter=5)
    identity.admit(node.id, shown)
    speaks(node)
    Node.objects.update(session_counter=9)
    identity.admit(node.id, shown, again=True)
    row = now_of(node)
    assert "session counter went back" in row.state_reason
    assert is_held(node)
    doubts.confirm(node.id, actor="user:ada", reason="restored from its own backup")
    entry = AuditEntry.objects.get(action="node.confirm")
    assert (entry.actor, entry.reason) == ("user:ada", "restored from its own backup")
    assert entry.data == {"doubt": row.doubt, "held": True}
    assert (now_of(node).state, now_of(node).held, now_of(node).doubt) == ("ready", False, "")
