"""V18, F26: a command in the database that none of our processes has signed is refused by the
agent, and what it was to cause is seen by people: counted, audited, a finding at the node.

The agents speak the real protocol and verify with the real code; tests/attacks/agents does
the same to a real agent process.
"""

from typing import Any

import pytest
from asgiref.sync import sync_to_async

from controlplane.access.models import AuditEntry
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.protocol.commands import CollectStacks, StopRanks
from controlplane.protocol.signing import SIGNATURE_REJECTED
from controlplane.protocol.states import CommandState
from controlplane.recovery.models import Signal
from controlplane.runtime import events
from controlplane.runtime.clock import after, now
from controlplane.runtime.ids import new_id
from controlplane.runtime.models import FrameCounter
from tests.integration.backend.conftest import eventually
from tests.integration.backend.fleet_of_cores import World
from tests.integration.backend.servers import Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]

STOP = StopRanks(job_id="job_x", attempt=1, replica=-1, incarnation=1, grace_s=0.0, reason="an attack")
LOOK = CollectStacks(job_id="job_x", replica=0, incarnation=1)


def insert(node: Node, **columns: Any) -> str:
    """A row as somebody with the database's password writes it; its id."""
    values: dict[str, Any] = {
        "id": new_id("cmd"), "node": node, "kind": "stop_ranks", "body": {"kind": "stop_ranks", "garbage": [1]},
        "created_at": now(), "due_at": after(60.0),
    }  # fmt: skip
    return Command.objects.create(**(values | columns)).id


def give(node: Node, body: StopRanks | CollectStacks) -> Command:
    """A genuine command that its node does not get yet."""
    with events.unit_of_work():
        row = dispatch.enqueue(body, node_id=node.id)
        Command.objects.filter(pk=row.pk).update(state=CommandState.DELIVERED, send_due_at=after(3600.0))
    return row


def release(command_id: str, **columns: Any) -> None:
    """Let it go out, altered."""
    Command.objects.filter(pk=command_id).update(send_due_at=now(), **columns)


async def refused(world: World, stack: Stack, command_id: str) -> Command:
    """Its row once the agent has refused it; nobody carried it out."""
    row = await eventually(
        "the command is answered",
        lambda: Command.objects.filter(pk=command_id).exclude(state__in=dispatch.LIVE).first(),
        stack=stack,
    )
    assert (row.state, row.data) == (CommandState.FAILED, SIGNATURE_REJECTED)
    for agent in world.agents:
        assert command_id not in {envelope.command_id for envelope in agent.executed}
    return row


async def test_a_row_inserted_without_a_key_is_refused_and_told(world: World, stack: Stack) -> None:
    node = await sync_to_async(Node.objects.get)(name="node-1")
    genuine = await sync_to_async(give)(node, LOOK)
    bare = await sync_to_async(insert)(node)
    borrowed = await sync_to_async(insert)(
        node, statement=genuine.statement, signature=genuine.signature, key_id=genuine.key_id
    )
    for command_id in (bare, borrowed):
        await refused(world, stack, command_id)
    count = await sync_to_async(FrameCounter.objects.get)(node_name="node-1", reason=SIGNATURE_REJECTED)
    assert count.count == 2
    audited = AuditEntry.objects.filter(action="command.signature_rejected", subject__in=(bare, borrowed))
    assert await sync_to_async(audited.count)() == 2
    finding = await sync_to_async(Signal.objects.get)(kind=SIGNATURE_REJECTED, settled_at=None)
    assert finding.node_id == node.id


async def test_an_edited_row_is_refused_whatever_was_edited(world: World, stack: Stack) -> None:
    node = await sync_to_async(Node.objects.get)(name="node-2")
    other = await sync_to_async(Node.objects.get)(name="node-3")
    body = {"kind": "stop_ranks", "job_id": "job_y", "attempt": 1, "replica": -1, "incarnation": 1, "grace_s": 0.0,
            "reason": ""}  # fmt: skip
    edits: list[dict[str, Any]] = [
        {"body": body}, {"epoch": 7}, {"attempt": 2}, {"decision_id": "dec_other"}, {"ttl_s": 61.0}, {"node": other},
        {"created_at": after(1.0)},
    ]  # fmt: skip
    for edit in edits:
        row = await sync_to_async(give)(node, STOP)
        await sync_to_async(release)(row.id, **edit)
        await refused(world, stack, row.id)
    row = await sync_to_async(give)(node, STOP)
    flipped = bytes(row.statement).replace(b"job_x", b"job_y")
    await sync_to_async(release)(row.id, statement=flipped)
    await refused(world, stack, row.id)


async def test_a_genuine_row_is_carried_out_and_leaves_no_finding(world: World, stack: Stack) -> None:
    node = await sync_to_async(Node.objects.get)(name="node-4")
    row = await sync_to_async(give)(node, STOP)
    await sync_to_async(release)(row.id)
    await eventually("it is done", lambda: Command.objects.get(pk=row.pk).state == "succeeded", stack=stack)
    assert not await sync_to_async(Signal.objects.filter(kind=SIGNATURE_REJECTED).exists)()
