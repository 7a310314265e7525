"""What a job's nodes are all told rests once, and each agent gets what was signed for it, byte for byte."""

import msgspec
import pytest

from agents.errors import SignatureRejected
from agents.link.pins import Pins
from controlplane.dispatch import services as dispatch
from controlplane.dispatch import statements
from controlplane.dispatch.models import Command, SharedBody
from controlplane.fleet.models import Node
from controlplane.protocol.commands import DeliverView, StopRanks
from controlplane.protocol.membership import Member, MemberRole, View
from controlplane.protocol.signing import decode_statement, encode_statement
from controlplane.runtime import events, keys
from controlplane.runtime.clock import ago, now_s
from tests.integration.backend.builders import make_fleet

pytestmark = pytest.mark.django_db
VIEW = DeliverView(View("job_x", 1, 3, tuple(Member(index, 1, MemberRole.CONTRIBUTOR) for index in range(5))))


def views() -> list[Command]:
    """A view for each of three nodes."""
    make_fleet(3)
    nodes = [f"n{number}" for number in range(1, 4)]
    ids = [node.id for name in nodes for node in Node.objects.filter(name=name)]
    with events.unit_of_work():
        dispatch.enqueue_all(VIEW, node_ids=ids, epoch=3, attempt=1, decision_id="dec_x")
    return dispatch.deliverable(ids)


def taken(row: Command, node_id: str) -> object:
    """What the agent of that node makes of it. Raises SignatureRejected."""
    return Pins(keys.server_public_keys(), node_id=node_id).verify(statements.signed(row), now_s()).body


def test_it_rests_once_and_each_agent_gets_its_own_command() -> None:
    rows = views()
    assert len({row.pk for row in rows}) == 3
    assert SharedBody.objects.count() == 1
    for row in rows:
        assert row.body == {}
        assert len(row.statement) < 250 < len(statements.signed(row).statement)
        assert taken(row, row.node_id) == VIEW
        assert statements.is_genuine(row)
        assert statements.body_of(row) == VIEW
        statement = statements.signed(row).statement
        assert encode_statement(decode_statement(statement)) == statement, "as every command is signed"
        assert decode_statement(statement).command_id == row.pk


def test_one_node_cannot_be_given_the_command_of_another() -> None:
    first, second, _ = views()
    with pytest.raises(SignatureRejected, match="not for this node"):
        taken(first, second.node_id)
    for column in ("statement", "signature"):
        moved = Command.objects.get(pk=second.pk)
        setattr(moved, column, getattr(first, column))
        with pytest.raises(SignatureRejected):
            taken(moved, second.node_id)
        assert not statements.is_genuine(moved)


@pytest.mark.parametrize("column", ["body", "packed"])
def test_whoever_alters_what_is_shared_is_refused_by_every_node(column: str) -> None:
    rows = views()
    other = msgspec.structs.replace(VIEW, view=msgspec.structs.replace(VIEW.view, epoch=4))
    value = msgspec.to_builtins(other) if column == "body" else msgspec.msgpack.encode(other)
    SharedBody.objects.update(**{column: value})
    for row in Command.objects.filter(pk__in=[row.pk for row in rows]):
        with pytest.raises(SignatureRejected):
            taken(row, row.node_id)
        assert not statements.is_genuine(row)


def test_whoever_deletes_it_stops_them_all_and_nothing_fails() -> None:
    rows = views()
    SharedBody.objects.all().delete()
    sent = dispatch.deliverable([row.node_id for row in rows])
    assert len(sent) == 3
    for row in (*sent, Command.objects.get(pk=rows[0].pk)):
        assert statements.body_of(row) is None
        with pytest.raises(SignatureRejected):
            taken(row, row.node_id)


def test_one_that_is_signed_again_says_all_of_it_itself() -> None:
    row = views()[0]
    row.created_at = ago(5.0)
    statements.sign_again(row)
    row.save()
    again = Command.objects.get(pk=row.pk)
    assert again.shared is None
    assert taken(again, again.node_id) == VIEW


def test_what_is_for_one_node_or_is_asked_by_its_body_rests_in_its_row() -> None:
    make_fleet(3)
    ids = list(Node.objects.values_list("id", flat=True))
    with events.unit_of_work():
        dispatch.enqueue(VIEW, node_id=ids[0])
        dispatch.enqueue_all(StopRanks("job_x", 1, 0, 1, 0.0, "r"), node_ids=ids)
    assert SharedBody.objects.count() == 0
    assert Command.objects.filter(body__replica=0).count() == 3


def test_it_is_forgotten_after_the_last_of_its_commands() -> None:
    rows = views()
    finished = ago(100.0)
    SharedBody.objects.update(created_at=finished)
    Command.objects.exclude(pk=rows[0].pk).update(state="succeeded", finished_at=finished)
    assert dispatch.forget_finished(50.0) == 2
    assert SharedBody.objects.count() == 1
    Command.objects.update(state="succeeded", finished_at=finished)
    assert dispatch.forget_finished(50.0) == 1
    assert SharedBody.objects.count() == 0
