"""An exchange that cannot be is not prepared for."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import Member, MemberRole, View
from controlplane.protocol.rank import CaughtUp, FromRank, SetView
from trainer.control.mailbox import Mailbox
from trainer.core import events as on
from trainer.core.rank import RankCore, Stage
from trainer.core.standing import Standing
from trainer.replica.exchange import Exchange
from trainer.replica.fetch import Received
from trainer.replica.pilot import Pilot


class Alone:
    """The votes of a replica of one rank."""

    size = 1

    def counts(self, mine: Sequence[bool]) -> list[int]:
        return [int(flag) for flag in mine]

    def all(self, mine: bool) -> bool:
        return mine


class Fetching:
    """A joiner's catch-up whose state arrives when it is told to."""

    def __init__(self) -> None:
        self.has_state = False
        self.backlog = 0

    @property
    def is_level(self) -> bool:
        return self.has_state and not self.backlog

    def keep(self, reduced: object) -> None:
        self.backlog += 1

    def replay_one(self) -> bool:
        replayed, self.backlog = self.backlog > 0, max(0, self.backlog - 1)
        return replayed

    def finish(self) -> Received:
        return Received()

    replayed_steps = 1


class Group:
    """An outer group of two, in which the other one computes until `while_others_compute` is over."""

    def __init__(self, while_others_compute: Callable[[], None]) -> None:
        self._meanwhile = while_others_compute

    def sum(self, tensor: object) -> object:
        self._meanwhile()
        return tensor

    def barrier(self, flags: Sequence[bool], *, on: object) -> tuple[bool, ...]:
        return tuple(flags)


class Staged(Exception):
    """The engine was asked for its vector."""


def stage(*args: object, **kwargs: object) -> None:
    raise Staged


def meeting(standing: Standing, mailbox: Mailbox) -> Pilot:
    """It has computed, or computes nothing."""
    core = RankCore(standing, micro_batch_count=2, max_contributors=None)
    core.stage = Stage.READY
    pilot = Pilot(core, mailbox, send=print)
    for event in (on.Begun(), on.Computed()):
        if core.stage is not Stage.MEETING:
            pilot.bring(event)
    return pilot


@pytest.mark.parametrize("is_over", [True, False])
def test_a_rank_that_knows_of_a_newer_view_stages_nothing(is_over: bool) -> None:
    view = View("job", 1, 1, (Member(0, 1, MemberRole.CONTRIBUTOR),))
    standing = Standing(RankRef("job", 1, 0, 1, 0), 5, role=MemberRole.CONTRIBUTOR, epoch=1, view=view)
    mailbox = Mailbox("job", 1)
    pilot = meeting(standing, mailbox)
    if is_over:
        mailbox.put(SetView(View("job", 1, 2, view.members)))
    exchange = Exchange(
        pilot,
        SimpleNamespace(stage=stage),
        outer=None,
        votes=Alone(),
        donor=None,
        catch_up=None,
        fence=None,
        send=print,
        pending=lambda: (False,) * 5,
    )
    if is_over:
        assert exchange.attempt() is None
        return
    with pytest.raises(Staged):
        exchange.attempt()


@pytest.mark.parametrize("arrives", [True, False])
def test_a_joiner_whose_state_arrives_while_the_others_compute_contributes_to_the_next_step(arrives: bool) -> None:
    members = (Member(0, 1, MemberRole.CONTRIBUTOR), Member(1, 2, MemberRole.JOINER))
    standing = Standing(
        RankRef("job", 1, 1, 2, 0),
        5,
        role=MemberRole.JOINER,
        epoch=1,
        view=View("job", 1, 1, members),
        contributors=(0,),
    )
    fetching, said = Fetching(), list[FromRank]()

    def compute() -> None:
        fetching.has_state = arrives

    exchange = Exchange(
        meeting(standing, Mailbox("job", 1)),
        SimpleNamespace(
            stage_zeros=lambda leaving: "zeros",
            tail=lambda reduced: SimpleNamespace(trained=(0, 1), leaving=(False, False)),
            device=None,
        ),
        outer=Group(compute),
        votes=Alone(),
        donor=SimpleNamespace(wait_copied=lambda: 0.0, release=lambda replicas: None),
        catch_up=fetching,
        fence=SimpleNamespace(wait_raised=lambda: None),
        send=said.append,
        pending=lambda: (False,) * 5,
    )
    assert exchange.attempt() is not None
    assert standing.contributors == ((0, 1) if arrives else (0,))
    assert [type(each) for each in said] == ([CaughtUp] if arrives else [])
    assert fetching.backlog == (0 if arrives else 1)
