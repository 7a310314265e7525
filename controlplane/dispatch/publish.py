"""Events of commands: one for one, and one for the same command to thousands of nodes."""

from collections.abc import Sequence

from controlplane.changes import outbox
from controlplane.dispatch import broadcasts
from controlplane.dispatch.models import Command
from controlplane.dispatch.present import command_summary
from controlplane.fleet.publish import NODE
from controlplane.policy.titles import number_of
from controlplane.protocol.commands import Body
from controlplane.protocol.states import CommandState
from controlplane.runtime import events, guard
from controlplane.runtime.clock import now
from controlplane.runtime.pieces import batched
from controlplane.runtime.prepared import TEXT, Prepared

COMMANDS_A_QUERY = 500
COMMAND: Prepared[Command] = Prepared(
    lambda command: Command.objects.filter(pk=command).select_related("node"), command=TEXT
)
"""With its node."""
_STARTS = ("body__launch__replica", "body__launch__incarnation")


def publish_queued(like: Command, ids: Sequence[str], number: int) -> None:
    """One event, however many nodes get the order: each node's own follows when it was sent. `like`: any of them;
    `ids`: those that are made already."""
    if number == 1:
        like.id, like.node = ids[0], NODE.get(node=like.node_id)
        publish_command(like, "command.queued", f"{like.kind} for node {like.node.name}.")
        return
    events.publish(
        "command.queued",
        f"{like.kind} for {number} nodes.",
        job_id=like.job_id or "",
        entity="command",
        data={"decision_id": like.decision_id},
    )


def supersede(orders: Sequence[tuple[str, Body]], *, job_id: str, epoch: int) -> None:
    """Commands that these, of one kind, make void (`changes.outbox`), with one event."""
    about = {id(body): outbox.sent(body, epoch=epoch) for body in {id(body): body for _, body in orders}.values()}
    new = {node_id: about[id(body)] for node_id, body in orders}
    kind = next((each.kind for each in new.values() if each is not None), "")
    if kind not in outbox.VOIDED:
        return
    nodes = set(broadcasts.take_back(job_id, outbox.VOIDED[kind], new))
    rows = Command.objects.filter(job_id=job_id, kind__in=outbox.VOIDED[kind], state__in=outbox.UNSENT)
    stops = kind == outbox.STOPS
    rows = rows if stops else rows.filter(epoch__lt=epoch)
    named = ("pk", "node_id", "kind", "epoch", "attempt")
    void: dict[str, str] = {}
    for pk, node_id, *told in rows.order_by("id").values_list(*named, *(_STARTS if stops else ())):
        by = new.get(node_id)
        if by is not None and outbox.is_void(outbox.Sent(*told), by):
            void[pk] = node_id
    why = "what it starts is stopped" if stops else f"epoch {epoch} is newer"
    columns = {"state": CommandState.SUPERSEDED, "finished_at": now(), "detail": why}
    for some in batched(list(void), COMMANDS_A_QUERY):
        Command.objects.filter(pk__in=some, state__in=outbox.UNSENT).update(**columns)
    if nodes := nodes | set(void.values()):
        for state in outbox.UNSENT:
            guard.check("command", state, CommandState.SUPERSEDED)
        sentence = f"Older commands are void, {why} ({number_of(len(nodes), 'node')})."
        events.publish("command.superseded", sentence, job_id=job_id, entity="command")


def publish_command(command: Command, kind: str, sentence: str) -> None:
    """An event with the command's summary as this unit of work leaves it."""
    pk = command.pk
    events.publish(
        kind,
        sentence,
        job_id=command.job_id or "",
        node_id=command.node_id,
        entity="command",
        entity_id=command.id,
        patch=lambda: command_summary(COMMAND.get(command=pk)),
        data={"decision_id": command.decision_id},
    )
