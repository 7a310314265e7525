"""Commands as the API and the events' patches show them."""

from typing import Any

import msgspec

from controlplane.dispatch.models import Command
from controlplane.protocol import rank_commands
from controlplane.protocol.states import CommandState
from controlplane.runtime.clock import iso


def command_summary(command: Command) -> dict[str, Any]:
    """One order to one node."""
    return {
        "id": command.id,
        "node_id": command.node_id,
        "node_name": command.node.name,
        "kind": command.kind,
        "state": command.state,
        "epoch": command.epoch,
        "created_at": iso(command.created_at),
        "delivered_at": iso(command.delivered_at),
        "acknowledged_at": iso(command.acknowledged_at),
        "finished_at": iso(command.finished_at),
        "deliveries": command.deliveries,
        "detail": command.detail,
        "result": _result(command),
    }


def _result(command: Command) -> dict[str, Any] | None:
    """What a rank has found, as the table reads it: a rank may say anything."""
    if command.kind != rank_commands.KIND or command.state != CommandState.SUCCEEDED:
        return None
    found = rank_commands.answer_of(command.body["name"], command.data)
    return None if found is None else msgspec.to_builtins(found)
