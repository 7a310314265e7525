"""Events of commands: one for one, and one for the same command to thousands of nodes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from controlplane.dispatch.models import Command
from controlplane.dispatch.present import command_summary
from controlplane.policy.titles import number_of
from controlplane.protocol.states import CommandState
from controlplane.runtime import events, guard
from controlplane.runtime.clock import now
from controlplane.runtime.pieces import batched

UNSENT = (CommandState.QUEUED, CommandState.DELIVERED)
COMMANDS_A_QUERY = 500


def publish_queued(rows: Sequence[Command]) -> None:
    """One event, however many nodes get the order: each node's own follows when it was sent."""
    first, *others = rows
    if not others:
        patch = partial(command_summary, first)
        _publish(first, "command.queued", f"{first.kind} for node {first.node.name}.", patch=patch)
        return
    events.publish(
        "command.queued",
        f"{first.kind} for {len(rows)} nodes.",
        job_id=first.job_id or "",
        entity="command",
        data={"decision_id": first.decision_id},
    )


def supersede(kinds: tuple[str, ...], *, node_ids: Sequence[str], job_id: str, epoch: int) -> None:
    """Orders of an older epoch that a newer one makes void, with one event."""
    rows = Command.objects.filter(job_id=job_id, kind__in=kinds, epoch__lt=epoch, state__in=UNSENT)
    wanted = set(node_ids)
    found = [(pk, node_id) for pk, node_id in rows.order_by("id").values_list("pk", "node_id") if node_id in wanted]
    older, places = [pk for pk, _ in found], {node_id for _, node_id in found}
    void = {"state": CommandState.SUPERSEDED, "finished_at": now(), "detail": f"epoch {epoch} is newer"}
    for some in batched(older, COMMANDS_A_QUERY):
        Command.objects.filter(pk__in=some, state__in=UNSENT).update(**void)
    if older:
        for state in UNSENT:
            guard.check("command", state, CommandState.SUPERSEDED)
        sentence = f"Older commands are void, epoch {epoch} is newer ({number_of(len(places), 'node')})."
        events.publish("command.superseded", sentence, job_id=job_id, entity="command")


def publish_command(command: Command, kind: str, sentence: str) -> None:
    """An event with the command's summary as this unit of work leaves it."""
    pk = command.pk
    _publish(command, kind, sentence, patch=lambda: command_summary(Command.objects.select_related("node").get(pk=pk)))


def _publish(command: Command, kind: str, sentence: str, *, patch: Callable[[], dict[str, Any]]) -> None:
    events.publish(
        kind,
        sentence,
        job_id=command.job_id or "",
        node_id=command.node_id,
        entity="command",
        entity_id=command.id,
        patch=patch,
        data={"decision_id": command.decision_id},
    )
