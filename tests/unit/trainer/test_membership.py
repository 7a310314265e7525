"""What the two threads of a rank do with its core: who says, serves, waits and enters."""

import threading
import time
from collections import Counter
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
from trainer.core import effects as do
from trainer.core import events as on
from trainer.core.rank import RankCore, Stage
from trainer.core.standing import Standing
from trainer.errors import EvictedError
from trainer.replica.membership import Membership
from trainer.replica.outer import OuterComm
from trainer.replica.pilot import REFLUSH_S, Pilot

LATE_S = 0.4
MEMBERS = (Member(0, 1, MemberRole.CONTRIBUTOR), Member(1, 1, MemberRole.CONTRIBUTOR))
OLD, NEW = View("job", 1, 1, MEMBERS), View("job", 1, 2, MEMBERS)
LATER = View("job", 1, 2, MEMBERS, at_step=6)
JOINED = View("job", 1, 2, (*MEMBERS, Member(2, 4, MemberRole.JOINER)), (Donor(joiner=2, donor=0),))


class Alone:
    """The votes of a replica of one rank; `meanwhile` happens while it agrees."""

    size = 1

    def __init__(self) -> None:
        self.meanwhile = lambda: None

    def counts(self, mine: list[bool]) -> list[int]:
        return [int(flag) for flag in mine]

    def all(self, mine: bool) -> bool:
        return mine

    def same(self, number: int, *, idle: object) -> bool:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        idle()
        return True


class Rank:
    """A contributor of epoch 1 in step 5 that holds micro-batch 0; what it says is in `said`."""

    def __init__(self) -> None:
        self.said: list[FromRank] = []
        self.served: list[tuple[int, set[tuple[int, int]]]] = []
        self.prepared: list[int] = []
        self.fenced = threading.Event()
        self.donor = SimpleNamespace(serve=self.serve, is_copying=False)
        self.standing = Standing(
            RankRef("job", 1, 0, 1, 0), 5, role=MemberRole.CONTRIBUTOR, epoch=1, view=OLD, contributors=(0, 1),
            done=(0,), done_step=5, todo=(2, 3),
        )  # fmt: skip
        self.core = RankCore(self.standing, micro_batch_count=4, max_contributors=None)
        self.core.stage = Stage.READY
        self.mailbox = Mailbox("job", 1)
        self.mailbox.put(SetView(OLD))
        self.pilot = Pilot(self.core, self.mailbox, send=self.said.append)
        self.votes = Alone()
        self.membership = self.joined_by(SimpleNamespace(build=lambda seat: None))
        self.pilot.connect = lambda seat: self.prepared.append(seat.epoch)
        self.pilot.serve = self.membership.serve
        self.mailbox.on_view, self.mailbox.on_install = self.pilot.see_view, self.pilot.see_install

    def joined_by(self, outer: object) -> Membership:
        """With this outer group."""
        return Membership(
            self.pilot,
            SimpleNamespace(state=list, device=torch.device("cpu")),
            mailbox=self.mailbox,
            preemption=SimpleNamespace(age_s=lambda: 0.0),
            exchange=SimpleNamespace(forget=lambda: None, commit=lambda wanted: wanted),
            outer=outer,
            votes=self.votes,
            donor=self.donor,
            catch_up=SimpleNamespace(is_whole=False),
            fence=SimpleNamespace(raise_to=lambda attempt, epoch: self.fenced.set()),
            send=self.said.append,
        )

    def serve(self, joiners: set[tuple[int, int]], state: list[object], *, step: int) -> None:
        """The donor's."""
        self.served.append((step, joiners))

    def compute(self) -> None:
        """Begin to, in the training thread."""
        self.pilot.bring(on.Begun())
        assert self.pilot.take(do.Compute) == do.Compute(5, (2, 3), fresh=False)

    def flushes(self) -> list[tuple[int, tuple[int, ...]]]:
        """(epoch, micro-batches) of each flush."""
        return [(said.epoch, said.done_micro_batches) for said in self.said if isinstance(said, Flush)]


def installed(view: View, *held: int, step: int = 5, contributors: tuple[int, ...] = (0, 1)) -> InstallView:
    return InstallView(Install("job", 1, view.epoch, step, contributors, (ReplicaDone(0, held),) if held else ()))


def test_a_view_is_flushed_and_connected_while_micro_batches_are_computed() -> None:
    rank = Rank()
    rank.compute()
    rank.mailbox.put(SetView(NEW))
    assert (rank.flushes(), rank.prepared) == ([(2, (0, 2, 3))], [2])
    rank.mailbox.put(installed(NEW, 0, 2, 3))
    rank.pilot.bring(on.Computed())
    rank.pilot.bring(on.Met(over=True))
    assert rank.membership.change_view() is None
    assert (rank.standing.epoch, rank.standing.done, rank.flushes()) == (2, (0, 2, 3), [(2, (0, 2, 3))])


def test_an_install_that_comes_while_it_computes_serves_a_joiner_at_once() -> None:
    rank = Rank()
    rank.compute()
    rank.mailbox.put(SetView(JOINED))
    assert rank.served == [], "a view alone fixes no step"
    rank.mailbox.put(installed(JOINED, 0, 2, 3))
    assert rank.served == [(5, {(2, 4)})]


def test_outside_of_computing_only_the_training_thread_serves() -> None:
    """The state may be about to be stepped."""
    rank = Rank()
    rank.compute()
    rank.mailbox.put(SetView(JOINED))
    rank.pilot.bring(on.Computed())
    rank.mailbox.put(installed(JOINED, 0, 2, 3))
    assert rank.served == []


def test_who_brings_an_install_never_waits_for_a_copy() -> None:
    """It brings heartbeats too."""
    rank = Rank()
    rank.donor.is_copying = True
    rank.compute()
    rank.mailbox.put(SetView(JOINED))
    rank.mailbox.put(installed(JOINED, 0, 2, 3))
    assert rank.served == []


def test_a_step_is_not_awaited_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank()
    rank.mailbox.put(SetView(LATER))
    assert not rank.pilot.is_over()
    arrived_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: arrived_s + MAX_AWAITED_S)
    assert rank.pilot.is_over()


def test_a_rank_that_answers_a_newer_view_while_its_replica_agrees_enters_that() -> None:
    """It held micro-batch 0 when it answered; view 2 would have it forget that, and view 3 counts on it."""
    rank = Rank()
    rank.core.stage = Stage.WAITING
    newer = View("job", 1, 3, MEMBERS)
    rank.votes.meanwhile = lambda: (rank.mailbox.put(SetView(newer)), rank.mailbox.put(installed(newer, 0)))
    rank.mailbox.put(SetView(NEW))
    rank.mailbox.put(installed(NEW))
    rank.membership.change_view()
    assert (rank.standing.epoch, rank.standing.done, rank.standing.todo) == (3, (0,), (1, 3))
    assert rank.flushes() == [(2, (0,)), (3, (0,))]


class Ahead(Alone):
    """The votes where another rank of the replica has view 3 since long; `times` of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.times: Counter[int] = Counter()

    def same(self, number: int, *, idle: object) -> bool:
        self.times[number] += 1
        return number == 3


def test_a_rank_that_lacks_a_view_which_another_has_waits_for_it_between_two_votes() -> None:
    rank = Rank()
    rank.core.stage = Stage.WAITING
    votes = Ahead()
    rank.votes, newer = votes, View("job", 1, 3, MEMBERS)
    here = rank.joined_by(SimpleNamespace(build=lambda seat: None))
    rank.mailbox.put(SetView(NEW))
    rank.mailbox.put(installed(NEW))

    def late() -> None:
        rank.mailbox.put(SetView(newer))
        rank.mailbox.put(installed(newer, 0))

    threading.Timer(LATE_S, late).start()
    here.change_view()
    assert rank.standing.epoch == 3 and votes.times[3] == 1
    assert 1 < votes.times[2] <= 10, "twice as long between two votes as before"


def test_a_view_without_me_ends_me_while_my_replica_agrees() -> None:
    rank = Rank()
    rank.core.stage = Stage.WAITING
    rank.votes.meanwhile = lambda: rank.mailbox.put(SetView(View("job", 1, 3, MEMBERS[1:])))
    rank.mailbox.put(SetView(NEW))
    rank.mailbox.put(installed(NEW, 0))
    with pytest.raises(EvictedError, match=r"epoch 3 does not name 0\.1"):
        rank.membership.change_view()


def test_what_was_said_is_said_again_on_a_new_connection_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank()
    rank.core.stage = Stage.WAITING
    rank.mailbox.put(SetView(NEW))
    rank.pilot.repeat()
    assert len(rank.flushes()) == 1
    rank.mailbox.reconnected()
    rank.pilot.repeat()
    rank.pilot.repeat()
    assert len(rank.flushes()) == 2
    later_s = time.monotonic() + REFLUSH_S
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    rank.pilot.repeat()
    assert len(rank.flushes()) == 3


def test_a_view_that_comes_while_a_group_is_built_ends_that_and_is_entered() -> None:
    rank = Rank()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30.0))
    outer = OuterComm(store, timeout_s=30.0, interrupted=rank.pilot.is_over)
    here, rank.pilot.connect = rank.joined_by(outer), outer.prepare
    rank.core.stage = Stage.WAITING
    rank.mailbox.put(SetView(NEW))
    rank.mailbox.put(installed(NEW, 0))
    training = threading.Thread(target=here.change_view, daemon=True)
    training.start()
    assert rank.fenced.wait(30.0)
    assert rank.standing.epoch == 2, "it builds, and waits for a peer that does not come"
    alone = View("job", 1, 3, MEMBERS[:1])
    rank.mailbox.put(SetView(alone))
    rank.mailbox.put(installed(alone, 0, contributors=(0,)))
    training.join(30.0)
    assert not training.is_alive()
    assert (rank.standing.epoch, rank.standing.todo) == (3, (1, 2, 3))
    # The peer comes after all: what was given up ends by itself.
    OuterComm(store, timeout_s=30.0, interrupted=lambda: False).build(do.Seat(2, "outer/job/1/2/0", 1, 2))
