"""Hellos of a node, for tests of what they prove."""

from typing import Any

import msgspec

from controlplane.changes.handshake import (
    Greeting,
    greeted,
)
from controlplane.changes.kinds import (
    Change,
    Enqueue,
)
from controlplane.protocol.commands import StopRanks
from controlplane.protocol.frames import AgentHello, RankStatus
from controlplane.protocol.launch import RankRef
from controlplane.protocol.states import Phase, RankState, Section
from controlplane.simulator.rows import JOB_ID

from .builders import NODES, World

NODE = NODES[1]
HELLO = AgentHello(
    protocol_min=1, protocol_max=1, node_name=NODE, agent_version="1", boot_id="boot", journal_id="jrn", devices=()
)


def greeting(**fields: bool) -> Greeting:
    said = {"behind": False, "renewed": False, "rebooted": False} | fields
    return Greeting(node_id=NODE, node=NODE, **said)


def alive(rank: int, replica: int = 1, incarnation: int = 1, attempt: int = 1, **fields: Any) -> RankStatus:
    told = RankStatus(
        ref=RankRef(JOB_ID, attempt, replica, incarnation, rank),
        state=RankState.TRAINING,
        pid=7,
        device_index=rank,
        section=Section.STEP,
        phase=Phase.COMPUTE,
        step=5,
        phase_age_s=0.0,
        silent_s=0.0,
    )
    return msgspec.structs.replace(told, **fields)


def started(world: World) -> World:
    for row in world.rows.replicas.values():
        row.started |= {0, 1}
        row.joined |= {0, 1}
    return world


def met(world: World, *listed: RankStatus, **fields: bool) -> list[Change]:
    return list(greeted(world.store, listed, greeting(**fields)))


def stops(changes: list[Change]) -> list[StopRanks]:
    orders = [body for change in changes if isinstance(change, Enqueue) for _, body in change.commands]
    return [body for body in orders if isinstance(body, StopRanks)]
