"""Commands that a node had journaled when its machine went down."""

import pytest

from controlplane.changes.handshake import ENDED_WITH_IT, NOT_ANSWERED, Greeting, greeted
from controlplane.changes.kinds import Enqueue
from controlplane.protocol.commands import Body, StopRanks, WarmHost
from controlplane.protocol.states import CommandState
from controlplane.simulator.rows import JOB_ID

from .builders import NODES, placed

NODE = NODES[1]
BEGAN_AGAIN = Greeting(node_id=NODE, node=NODE, behind=False, renewed=True, rebooted=False)
STARTED_AGAIN = Greeting(node_id=NODE, node=NODE, behind=False, renewed=True, rebooted=True)


@pytest.mark.parametrize(
    ("body", "state", "detail"),
    [
        (WarmHost(job_id=JOB_ID, attempt=1, user="ada"), "failed", NOT_ANSWERED),
        (StopRanks(JOB_ID, 1, 1, 1, 5.0, "asked"), "succeeded", ENDED_WITH_IT),
    ],
)
def test_whatever_was_under_way_there_is_over_with_the_machine(body: Body, state: str, detail: str) -> None:
    world = placed()
    world.store.commit([Enqueue(((NODE, body),), 1, 60.0)])
    command, row = list(world.rows.commands.items())[-1]
    row.state = CommandState.ACKNOWLEDGED
    assert list(greeted(world.store, (), BEGAN_AGAIN)) == [], "its agent alone began again"
    world.store.commit(greeted(world.store, (), STARTED_AGAIN))
    assert (world.rows.commands[command].state, world.rows.commands[command].detail) == (state, detail)
