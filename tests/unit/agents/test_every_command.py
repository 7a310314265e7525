"""Each kind of command, once: it has a handler, and expired, stale or repeated it has no effect.

A kind that is added without a row here fails; what it does when it is neither is a story of its own
(`test_core_rules`).
"""

from dataclasses import replace

import msgspec
import pytest

from agents.core import events as ev
from agents.core.commands import _HANDLERS
from agents.core.effects import Effect, Note, Persist, SendSoon
from agents.core.state import CommandStage, Job
from agents.core.step import step
from controlplane.protocol.commands import (
    Body,
    CollectStacks,
    CommandRank,
    DeliverInstall,
    DeliverView,
    EndVerification,
    ForRanks,
    InjectDeviceFault,
    InjectLinkFault,
    InjectRankFault,
    KeepCheckpoints,
    OrderRecompute,
    RequestSave,
    ResetDevice,
    StartRanks,
    StopRanks,
    VerifyCheckpoint,
    WarmHost,
)
from controlplane.protocol.membership import Install, Member, MemberRole, View
from controlplane.protocol.recompute import Recompute, Share, Span
from tests.properties.agents.world import World, launch, order
from tests.unit.agents.test_core_rules import give, hello, running, told

AGAIN = Recompute(
    order_id="rec_1", path="/c/step_00000001-e1", from_step=1, until_step=3,
    spans=(Span(1, (Share(0, ((0, 1),)),)),), limit_s=60.0,
)  # fmt: skip
BODIES: tuple[Body, ...] = (
    StartRanks(launch(replica=1)),
    StopRanks("job_1", 1, 0, 1, 0.0, "test"),
    DeliverView(View("job_1", 1, 2, (Member(0, 1, MemberRole.CONTRIBUTOR),))),
    DeliverInstall(Install("job_1", 1, 2, 0, (0,))),
    RequestSave("job_1", 1, "manual", "test"),
    OrderRecompute("job_1", 1, 0, 1, AGAIN),
    KeepCheckpoints("job_1", 1, 0, 1, ()),
    CommandRank("job_1", 1, 0, 1, 1, "collect_garbage"),
    CollectStacks("job_1", 0, 1),
    VerifyCheckpoint("job_1", "/c/step_00000001-e1", 1, 1, 60.0),
    EndVerification("cmd_9"),
    WarmHost("job_1", 1),
    ResetDevice(7, "GPU-7"),
    InjectDeviceFault(0, "heal"),
    InjectRankFault("job_1", 0, 1, 0, "sigkill"),
    InjectLinkFault(1.0),
)
ANY_EPOCH = (StartRanks, StopRanks, CollectStacks)
"""A start is fenced by its incarnation; an end and a look are right at any time."""
KEPT = (Persist, SendSoon, Note)
"""Effects that remember and tell, and do nothing."""
named = pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)


def connected() -> World:
    """A node with one replica that trains."""
    world = running()
    for index in (0, 1):
        told(world, hello(world, index, conn_id=index + 1))
    return world


def heard(world: World, number: int, body: Body, epoch: int = 2, age_s: float = 0.0) -> list[Effect]:
    """What the agent does when this command arrives, beyond remembering and telling."""
    envelope = msgspec.structs.replace(order(number, body, epoch, 1), age_s=age_s)
    world.state, effects = step(world.state, ev.OrderReceived(now_s=world.now_s, commands=(envelope,)))
    return [effect for effect in effects if not isinstance(effect, KEPT)]


def test_every_kind_has_its_handler_and_its_row_here() -> None:
    kinds = set(Body.__args__)
    assert set(_HANDLERS) == {kind for kind in kinds if not issubclass(kind, ForRanks)}
    assert {type(body) for body in BODIES} == kinds and len(BODIES) == len(kinds)


@named
def test_an_expired_one_is_refused_before_anything_is_done(body: Body) -> None:
    world = connected()
    assert heard(world, 2, body, age_s=61.0) == []
    assert world.state.commands["cmd_2"].stage is CommandStage.SUPERSEDED


@named
def test_a_repeated_one_is_answered_and_done_once(body: Body) -> None:
    world = connected()
    give(world, order(2, body, 2, 1))
    assert world.state.commands["cmd_2"].stage is not CommandStage.JOURNALING
    assert heard(world, 2, body) == []


@named
def test_one_of_an_older_epoch_does_nothing(body: Body) -> None:
    if isinstance(body, ANY_EPOCH):
        return
    world = connected()
    job = world.state.jobs.get("job_1") or Job(job_id="job_1")
    world.state = replace(world.state, jobs={**world.state.jobs, "job_1": replace(job, attempt=1, epoch=9)})
    heard(world, 2, body)
    journaled = ev.Journaled(now_s=world.now_s, command_ids=("cmd_2",))
    world.state, effects = step(world.state, journaled)
    assert [effect for effect in effects if not isinstance(effect, KEPT)] == []
    assert world.state.commands["cmd_2"].stage is CommandStage.SUPERSEDED
