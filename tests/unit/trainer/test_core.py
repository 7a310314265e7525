"""What a rank's core does with each event, alone."""

import pytest

from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import Donor, Install, Member, MemberRole, ReplicaDone, View
from trainer.core import effects as do
from trainer.core import events as on
from trainer.core.rank import RankCore, Stage
from trainer.core.standing import Standing

CONTRIBUTOR, JOINER = MemberRole.CONTRIBUTOR, MemberRole.JOINER
MEMBERS = (Member(0, 1, CONTRIBUTOR), Member(1, 1, CONTRIBUTOR))
OLD, NEW = View("job", 1, 1, MEMBERS), View("job", 1, 2, MEMBERS)
NEWER = View("job", 1, 3, MEMBERS)
LATER = View("job", 1, 2, MEMBERS, at_step=6)
JOINED = View("job", 1, 2, (*MEMBERS, Member(2, 4, JOINER)), (Donor(joiner=2, donor=0),))


def install(epoch: int, step: int, held: tuple[int, ...] = (), contributors: tuple[int, ...] = (0, 1)) -> Install:
    """What replica 0 holds counts."""
    return Install("job", 1, epoch, step, contributors, (ReplicaDone(0, held),) if held else ())


def contributor(stage: Stage = Stage.READY) -> RankCore:
    """Of epoch 1, in step 5 of which it holds micro-batch 0 and has 2 to compute."""
    ref = RankRef("job", 1, 0, 1, 0)
    standing = Standing(
        ref, 5, role=CONTRIBUTOR, epoch=1, view=OLD, contributors=(0, 1), done=(0,), done_step=5, todo=(2,)
    )
    core = RankCore(standing, micro_batch_count=4, max_contributors=None)
    core.view, core.stage, core.answered = OLD, stage, 1
    return core


def computing() -> RankCore:
    """It computes micro-batch 2."""
    core = contributor()
    assert core.handle(on.Begun()) == [do.Compute(5, (2,), fresh=False)]
    return core


def said(effects: list[do.Effect]) -> list[tuple[int, tuple[int, ...], bool]]:
    """(epoch, micro-batches, prepared) of each flush."""
    return [
        (effect.flush.epoch, effect.flush.done_micro_batches, effect.flush.prepared)
        for effect in effects
        if isinstance(effect, do.Say)
    ]


def asked(effects: list[do.Effect]) -> do.Effect | None:
    """What is asked of the replica."""
    return effects[-1] if effects and isinstance(effects[-1], do.ASKS) else None


def test_a_step_that_nobody_interrupts():
    core = computing()
    assert core.handle(on.Computed()) == [do.Meet(over=False)]
    assert core.handle(on.Met(over=False)) == [do.Sum(counts=True)]
    assert core.handle(on.Summed(held=True)) == [do.Barrier(joins=False)]
    (commit,) = core.handle(on.Passed(level=()))
    assert isinstance(commit, do.CommitStep)
    assert (commit.step, commit.micro_batches, commit.rolled_forward, commit.holders) == (5, (0, 2), False, (0, 1))
    assert core.handle(on.Begun()) == [do.Compute(6, (0, 2), fresh=True)]


def test_a_sum_without_the_barrier_commits_nothing():
    core = contributor(Stage.SUMMING)
    core.handle(on.Summed(held=True))
    assert core.handle(on.Passed(level=None)) == []
    assert core.standing.committed == 5
    assert said(core.handle(on.ViewSeen(NEW))) == [(2, (0,), True)]


def test_a_view_that_comes_while_it_computes_is_answered_at_once_and_once():
    core = computing()
    assert said(core.handle(on.ViewSeen(NEW))) == [(2, (0, 2), False)]
    assert core.handle(on.ViewSeen(NEW)) == []
    assert core.handle(on.InstallSeen(install(2, 5, (0, 2)))) == [do.Serve(frozenset(), 5, early=True)]
    assert core.handle(on.Computed()) == [do.Meet(over=True)]
    assert core.handle(on.Met(over=True)) == [do.Agree(2)]


def test_a_view_that_came_between_two_steps_is_answered_when_the_next_begins():
    core = contributor()
    assert said(core.handle(on.ViewSeen(NEW))) == []
    assert said(core.handle(on.Begun())) == [(2, (0, 2), False)]


@pytest.mark.parametrize("stage", [Stage.BUILDING, Stage.SUMMING, Stage.PASSING])
def test_a_view_ends_what_is_built_or_exchanged(stage: Stage):
    core = contributor(stage)
    effects = core.handle(on.ViewSeen(NEW))
    assert do.Abandon() in effects
    assert said(effects) == [], "only when that is given up"


def test_a_view_without_me_is_not_answered_and_ends_me_when_i_wait():
    core = computing()
    alone = View("job", 1, 2, MEMBERS[1:], reason="silent")
    assert core.handle(on.ViewSeen(alone)) == []
    core.handle(on.Computed())
    (leave,) = core.handle(on.Met(over=True))
    assert isinstance(leave, do.Leave)
    assert (leave.why, leave.text) == (do.Why.EVICTED, "epoch 2 does not name 0.1: silent")
    assert core.handle(on.ViewSeen(NEWER)) == [], "it has left"


def test_a_view_that_names_a_step_is_as_if_it_had_not_come_until_that_is_committed():
    core = computing()
    effects = core.handle(on.ViewSeen(LATER))
    assert [type(effect) for effect in effects] == [do.Connect, do.Await]
    for event in (on.Computed(), on.Met(over=False), on.Summed(held=True), on.Passed(level=())):
        assert not core.is_over
        core.handle(event)
    assert core.is_over
    assert said(core.handle(on.Begun())) == [(2, (0, 2), False)]


def test_a_step_is_not_awaited_for_ever():
    core = computing()
    core.handle(on.ViewSeen(LATER))
    assert said(core.handle(on.ViewAwaited(2))) == [(2, (0, 2), False)]


def test_who_has_answered_a_view_or_waits_awaits_no_step():
    core = computing()
    core.handle(on.ViewSeen(NEW))
    assert said(core.handle(on.ViewSeen(View("job", 1, 3, MEMBERS, at_step=9)))) == [(3, (0, 2), False)]
    waiting = contributor(Stage.SUMMING)
    waiting.handle(on.ViewSeen(LATER))
    assert said(waiting.handle(on.Summed(held=False))) == [(2, (0,), False)]


def agreeing(core: RankCore) -> RankCore:
    """It has prepared step 5, has the install of view 2, and waits for its replica."""
    core.standing.prepared = True
    core.handle(on.Passed(level=None))
    core.handle(on.ViewSeen(NEW))
    assert core.handle(on.InstallSeen(install(2, 6))) == [do.Agree(2)]
    return core


def test_a_prepared_step_is_rolled_forward():
    core = agreeing(contributor(Stage.PASSING))
    assert core.handle(on.Agreed(same=True)) == [do.Confirm(stands=True, keeps=False)]
    commit, serve, build = core.handle(on.Confirmed(stands=True, keeps=False))
    assert isinstance(commit, do.CommitStep)
    assert (commit.step, commit.epoch, commit.rolled_forward) == (5, 1, True)
    assert serve == do.Serve(frozenset(), 6)
    assert build == do.Build(do.Seat(2, "outer/job/1/2/0", 0, 2))
    assert core.handle(on.Built(inside=True)) == [do.Entered(2, 6, ())]


def test_who_has_answered_a_newer_view_never_enters_an_older_one():
    """It answered as one that had prepared step 5 and holds micro-batch 0. In view 2 it would roll
    forward and forget both, and the install of view 3, which counts on them, would end it."""
    core = agreeing(contributor(Stage.PASSING))
    assert said(core.handle(on.ViewSeen(NEWER))) == [(3, (0,), True)], "others may wait for it"
    assert core.handle(on.Agreed(same=True)) == [do.Confirm(stands=False, keeps=False)]
    assert core.handle(on.Confirmed(stands=False, keeps=False)) == []
    assert (core.standing.epoch, core.standing.committed, core.standing.prepared) == (1, 5, True)
    assert core.handle(on.InstallSeen(install(3, 5, (0,)))) == [do.Agree(3)]
    core.handle(on.Agreed(same=True))
    assert isinstance(asked(core.handle(on.Confirmed(stands=True, keeps=False))), do.Build)
    assert (core.standing.epoch, core.standing.done) == (3, (0,))


def test_one_whose_peer_has_answered_a_newer_view_waits_for_that_and_asks_again():
    core = agreeing(contributor(Stage.PASSING))
    assert core.handle(on.Agreed(same=True)) == [do.Confirm(stands=True, keeps=False)]
    assert core.handle(on.Confirmed(stands=False, keeps=False)) == [do.Agree(2)]
    assert said(core.handle(on.ViewSeen(NEWER))) == [(3, (0,), True)]
    assert core.handle(on.InstallSeen(install(3, 5, (0,)))) == []
    assert core.handle(on.Agreed(same=False)) == [do.Agree(3)]


def test_an_install_that_cannot_be_followed_ends_it():
    for order, text in ((install(2, 9), "stands at step 9, I at 6"), (install(2, 6, (1,)), "counts (1,) as mine")):
        core = contributor(Stage.PASSING)
        core.standing.prepared = True
        core.handle(on.Passed(level=None))
        core.handle(on.ViewSeen(NEW))
        core.standing.committed += order.step == 9
        core.handle(on.InstallSeen(order))
        core.handle(on.Agreed(same=True))
        leave = asked(core.handle(on.Confirmed(stands=True, keeps=False)))
        assert isinstance(leave, do.Leave)
        assert leave.why is do.Why.VIOLATED
        assert text in leave.text


def test_an_install_that_comes_while_it_computes_serves_a_joiner_at_once():
    core = computing()
    core.handle(on.ViewSeen(JOINED))
    assert core.handle(on.InstallSeen(install(2, 5, (0, 2)))) == [do.Serve(frozenset({(2, 4)}), 5, early=True)]
    overtaken = computing()
    overtaken.handle(on.ViewSeen(JOINED))
    overtaken.handle(on.ViewSeen(NEWER))
    assert overtaken.handle(on.InstallSeen(install(2, 5, (0, 2)))) == []


def joiner(view: View, step: int = 5) -> tuple[RankCore, list[do.Effect]]:
    """Replica 2, life 4, that enters its first view."""
    core = RankCore(Standing(RankRef("job", 1, 2, 4, 0), 0), micro_batch_count=4, max_contributors=None)
    core.handle(on.ViewSeen(view))
    core.handle(on.InstallSeen(install(view.epoch, step)))
    core.handle(on.Agreed(same=True))
    return core, core.handle(on.Confirmed(stands=True, keeps=False))


def test_a_joiner_fetches_takes_part_and_contributes_once_it_is_level():
    core, effects = joiner(JOINED)
    assert do.Fetch(((0, 1),), 5) in effects
    core.handle(on.Built(inside=True))
    assert core.handle(on.Begun()) == [do.Meet(over=False)], "it computes nothing"
    assert core.handle(on.Met(over=False)) == [do.Sum(counts=False)]
    assert core.handle(on.Summed(held=True)) == [do.Barrier(joins=True)]
    core.handle(on.Fetched())
    commit, welcome = core.handle(on.Passed(level=(2,)))
    assert isinstance(commit, do.CommitStep)
    assert commit.keeps
    assert welcome == do.Welcome(frozenset({2}), CONTRIBUTOR)
    assert core.standing.contributors == (0, 1, 2)
    assert core.handle(on.Begun()) == [do.Compute(6, (2,), fresh=True)]


@pytest.mark.parametrize(("donor", "whole", "keeps"), [(0, False, True), (1, False, False), (1, True, True)])
def test_a_joiner_goes_on_with_what_it_fetches_where_it_can(donor: int, whole: bool, keeps: bool):
    core, _ = joiner(JOINED)
    if whole:
        core.handle(on.Fetched())
    core.handle(on.ViewSeen(View("job", 1, 3, JOINED.members, (Donor(joiner=2, donor=donor),))))
    core.handle(on.Built(inside=False))
    core.handle(on.InstallSeen(install(3, 5)))
    assert core.handle(on.Agreed(same=True)) == [do.Confirm(stands=True, keeps=keeps)]
    first = core.handle(on.Confirmed(stands=True, keeps=keeps))[0]
    assert first == (do.GoOn(((donor, 1),) if donor == 0 else ()) if keeps else do.Fetch(((1, 1),), 5))


def test_one_that_was_left_out_and_comes_back_forgets_what_it_had_prepared():
    core = contributor(Stage.PASSING)
    core.standing.prepared = True
    core.handle(on.Passed(level=None))
    back = View("job", 1, 4, (Member(0, 1, JOINER), MEMBERS[1]), (Donor(joiner=0, donor=1),), returning=(0,))
    (flush,) = [effect.flush for effect in core.handle(on.ViewSeen(back)) if isinstance(effect, do.Say)]
    assert (flush.role, flush.prepared) == (JOINER, False)
    core.handle(on.InstallSeen(install(4, 6, contributors=(1,))))
    core.handle(on.Agreed(same=True))
    effects = core.handle(on.Confirmed(stands=True, keeps=False))
    assert effects[0] == do.Fetch(((1, 1),), 6), "it commits nothing of its own"


def test_what_may_be_lost_is_said_again():
    core = contributor(Stage.SUMMING)
    core.handle(on.ViewSeen(NEW))
    core.handle(on.Summed(held=False))
    assert said(core.handle(on.Unheard())) == [(2, (0,), False)]
    assert said(contributor().handle(on.Unheard())) == []


def test_a_view_that_came_while_a_group_was_built_is_awaited_from_its_step_on() -> None:
    """It was due while the group was built; once that stands, it begins with its step, for which somebody waits."""
    core = contributor(Stage.BUILDING)
    core.handle(on.ViewSeen(View("job", 1, 2, MEMBERS, at_step=7)))
    assert do.Await(2) in core.handle(on.Built(True))
