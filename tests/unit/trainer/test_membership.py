"""A rank that computes answers a view at once, and stands by its answer."""

import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import (
    MAX_AWAITED_S,
    Donor,
    Flush,
    Install,
    Member,
    MemberRole,
    ReplicaDone,
    View,
)
from controlplane.protocol.rank import FromRank, InstallView, SetView
from trainer.control.mailbox import Mailbox
from trainer.replica.membership import Membership
from trainer.replica.newer import NewerView
from trainer.replica.outer import OuterComm, Seat
from trainer.replica.standing import Standing

MEMBERS = (Member(0, 1, MemberRole.CONTRIBUTOR), Member(1, 1, MemberRole.CONTRIBUTOR))
OLD, NEW = View("job", 1, 1, MEMBERS), View("job", 1, 2, MEMBERS)
LATER = View("job", 1, 2, MEMBERS, at_step=6)
JOINED = View("job", 1, 2, (*MEMBERS, Member(2, 4, MemberRole.JOINER)), (Donor(joiner=2, donor=0),))


class Rank:
    """A contributor of epoch 1 in step 5 that holds micro-batch 0; what it says is in `said`."""

    def __init__(self) -> None:
        self.said: list[FromRank] = []
        self.served: list[tuple[int, set[tuple[int, int]]]] = []
        self.prepared: list[int] = []
        self.donor = SimpleNamespace(serve=self.serve, is_copying=False)
        ref = RankRef("job", 1, 0, 1, 0)
        self.standing = Standing(ref, 5, role=MemberRole.CONTRIBUTOR, epoch=1, view=OLD, done=(0,), done_step=5)
        self.mailbox = Mailbox("job", 1)
        self.newer_view = NewerView(self.standing, self.mailbox)
        self.mailbox.put(SetView(OLD))
        self.membership = Membership(
            self.standing,
            SimpleNamespace(state=list, micro_batch_count=4, device=torch.device("cpu")),
            mailbox=self.mailbox,
            newer_view=self.newer_view,
            preemption=SimpleNamespace(age_s=lambda: 0.0),
            exchange=None,
            outer=SimpleNamespace(prepare=lambda seat: self.prepared.append(seat.epoch)),
            votes=SimpleNamespace(same=lambda value, idle: True),
            donor=self.donor,
            catch_up=None,
            fence=None,
            send=self.said.append,
        )
        self.mailbox.on_view = self.membership.foresee
        self.mailbox.on_install = self.membership.foresee_install

    def serve(self, joiners: set[tuple[int, int]], state: list[object], *, step: int) -> None:
        """The donor's."""
        self.served.append((step, joiners))

    def flushes(self) -> list[tuple[int, tuple[int, ...]]]:
        """(epoch, micro-batches) of each flush."""
        return [(said.epoch, said.done_micro_batches) for said in self.said if isinstance(said, Flush)]


@pytest.mark.parametrize("arrives", ["before", "while it computes"])
def test_a_view_is_flushed_while_micro_batches_are_computed_with_these_as_done(arrives: str) -> None:
    rank = Rank()
    if arrives == "before":
        rank.mailbox.put(SetView(NEW))
        assert rank.flushes() == [], "it may be about to commit"
    with rank.membership.computing((2, 3)):
        if arrives != "before":
            rank.mailbox.put(SetView(NEW))
        assert rank.flushes() == [(2, (0, 2, 3))]
        rank.standing.done = (0, 2, 3)
    assert rank.prepared == [2]


def test_a_flush_that_was_made_while_computing_is_not_made_again() -> None:
    rank = Rank()
    with rank.membership.computing((2, 3)):
        rank.mailbox.put(SetView(NEW))
        rank.mailbox.put(InstallView(Install("job", 1, 2, 5, (0, 1), (ReplicaDone(0, (0, 2, 3)),))))
        rank.standing.done = (0, 2, 3)
    assert rank.membership._agree_on_install()[0] == NEW
    assert rank.flushes() == [(2, (0, 2, 3))]


def test_each_newer_view_is_flushed() -> None:
    rank = Rank()
    with rank.membership.computing((2,)):
        rank.mailbox.put(SetView(NEW))
        rank.mailbox.put(SetView(View("job", 1, 3, MEMBERS)))
    assert rank.flushes() == [(2, (0, 2)), (3, (0, 2))]


def test_a_rank_that_exchanges_flushes_nothing_from_another_thread() -> None:
    rank = Rank()
    with rank.membership.computing((2,)):
        rank.standing.done = (0, 2)
    rank.mailbox.put(SetView(NEW))
    assert rank.flushes() == []


def test_a_view_without_me_is_not_answered() -> None:
    rank = Rank()
    with rank.membership.computing((2,)):
        rank.mailbox.put(SetView(View("job", 1, 2, MEMBERS[1:])))
    assert rank.flushes() == []
    assert rank.prepared == []


def test_an_install_that_comes_while_it_computes_serves_a_joiner_at_once() -> None:
    rank = Rank()
    with rank.membership.computing((2, 3)):
        rank.mailbox.put(SetView(JOINED))
        assert rank.served == [], "a view alone fixes no step"
        rank.mailbox.put(InstallView(Install("job", 1, 2, 5, (0, 1), ())))
        assert rank.served == [(5, {(2, 4)})]


def test_outside_of_computing_only_the_training_thread_serves() -> None:
    """The state may be about to be stepped."""
    rank = Rank()
    with rank.membership.computing((2, 3)):
        rank.mailbox.put(SetView(JOINED))
    rank.mailbox.put(InstallView(Install("job", 1, 2, 5, (0, 1), ())))
    assert rank.served == []


def test_an_install_of_a_view_that_was_overtaken_serves_nobody() -> None:
    rank = Rank()
    with rank.membership.computing((2, 3)):
        rank.mailbox.put(SetView(JOINED))
        rank.mailbox.put(SetView(View("job", 1, 3, MEMBERS)))
        rank.mailbox.put(InstallView(Install("job", 1, 2, 5, (0, 1), ())))
    assert rank.served == []


def test_who_brings_an_install_never_waits_for_a_copy() -> None:
    """It brings heartbeats too."""
    rank = Rank()
    rank.donor.is_copying = True
    with rank.membership.computing((2, 3)):
        rank.mailbox.put(SetView(JOINED))
        rank.mailbox.put(InstallView(Install("job", 1, 2, 5, (0, 1), ())))
    assert rank.served == []


def test_a_view_that_names_a_step_is_as_if_it_had_not_come_until_that_is_committed() -> None:
    rank = Rank()
    with rank.membership.computing((2, 3)):
        rank.mailbox.put(SetView(LATER))
        assert rank.flushes() == []
    assert rank.prepared == [2], "its group is connected meanwhile"
    assert not rank.newer_view(), "the exchange of the step in progress goes on"
    rank.standing.committed, rank.standing.done, rank.standing.done_step = 6, (), 6
    assert rank.newer_view()
    with rank.membership.computing((0, 1)):
        assert rank.flushes() == [(2, (0, 1))]


def test_a_view_whose_step_is_committed_already_is_due_at_once() -> None:
    rank = Rank()
    with rank.membership.computing((2, 3)):
        rank.mailbox.put(SetView(View("job", 1, 2, MEMBERS, at_step=5)))
        assert rank.flushes() == [(2, (0, 2, 3))]


def test_a_view_that_leaves_somebody_out_is_not_held_up_by_one_that_is_awaited() -> None:
    rank = Rank()
    with rank.membership.computing((2, 3)):
        rank.mailbox.put(SetView(LATER))
        rank.mailbox.put(SetView(View("job", 1, 3, MEMBERS)))
        assert rank.flushes() == [(3, (0, 2, 3))]


def test_who_has_flushed_a_view_awaits_no_other() -> None:
    """It may commit nothing more in its epoch, so the step would never come."""
    rank = Rank()
    with rank.membership.computing((2, 3)):
        rank.mailbox.put(SetView(NEW))
        rank.mailbox.put(SetView(View("job", 1, 3, MEMBERS, at_step=9)))
        assert rank.flushes() == [(2, (0, 2, 3)), (3, (0, 2, 3))]
    assert rank.newer_view()


def test_who_is_in_a_view_change_awaits_no_step() -> None:
    """Its exchange has failed, or it trains nothing yet."""
    rank = Rank()
    rank.mailbox.put(SetView(LATER))
    assert not rank.newer_view()
    rank.newer_view.changing = True
    assert rank.newer_view()


def test_a_step_is_not_awaited_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank()
    rank.mailbox.put(SetView(LATER))
    arrived_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: arrived_s + MAX_AWAITED_S)
    assert rank.newer_view()


def test_a_view_that_comes_while_a_group_is_built_ends_that_and_is_entered() -> None:
    rank = Rank()
    here, building = rank.membership, threading.Event()
    here._engine.clear = lambda: None
    here._votes.all = lambda claim: claim
    here._fence = SimpleNamespace(raise_to=lambda attempt, epoch: building.set())
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30.0))
    here._outer = OuterComm(store, timeout_s=30.0, interrupted=rank.newer_view)
    rank.mailbox.put(SetView(NEW))
    rank.mailbox.put(InstallView(Install("job", 1, 2, 5, (0, 1), (ReplicaDone(0, (0,)),))))
    training = threading.Thread(target=here.change_view, daemon=True)
    training.start()
    assert building.wait(30.0)
    assert rank.standing.epoch == 2, "it builds, and waits for a peer that does not come"
    rank.mailbox.put(SetView(View("job", 1, 3, MEMBERS[:1])))
    rank.mailbox.put(InstallView(Install("job", 1, 3, 5, (0,), (ReplicaDone(0, (0,)),))))
    training.join(30.0)
    assert not training.is_alive()
    assert (rank.standing.epoch, rank.standing.todo) == (3, (1, 2, 3))
    # The peer comes after all: what was given up ends by itself.
    OuterComm(store, timeout_s=30.0, interrupted=lambda: False).build(Seat(2, "outer/job/1/2/0", 1, 2))
