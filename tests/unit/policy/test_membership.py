"""The view protocol's arithmetic."""

import pytest

from controlplane.policy.membership import Refusal, install, missing_flushes, next_view
from controlplane.protocol.membership import Donor, Install, Member, ReplicaDone

from .builders import CONTRIBUTOR, JOINER, STANDBY, flush, view_of

SIZES = {0: 2, 1: 2, 2: 2, 3: 2}


def make(*members, before=None):
    return next_view(
        job_id="job_1", attempt=1, epoch=3, members=tuple(Member(*m) for m in members), before=before, reason="why"
    )


def pair(index, **fields):
    return tuple(flush(index, rank, **fields) for rank in range(2))


TWO = view_of((0, 1, CONTRIBUTOR), (1, 1, CONTRIBUTOR))


def test_members_are_sorted():
    assert [m.replica for m in make((2, 1, CONTRIBUTOR), (0, 1, CONTRIBUTOR)).members] == [0, 2]


def test_every_joiner_has_two_donors_that_hold_the_state():
    view = make((0, 1, CONTRIBUTOR), (1, 2, JOINER), (2, 1, CONTRIBUTOR), (3, 1, CONTRIBUTOR))
    assert view.donors == (Donor(1, 0), Donor(1, 2))


def test_one_contributor_is_the_only_donor():
    assert make((0, 1, CONTRIBUTOR), (1, 2, JOINER)).donors == (Donor(1, 0),)


def test_donors_are_spread():
    members = ((0, 1, CONTRIBUTOR), (1, 1, CONTRIBUTOR), (2, 1, CONTRIBUTOR), (3, 1, CONTRIBUTOR))
    view = make(*members, (4, 2, JOINER), (5, 2, JOINER))
    assert view.donors == (Donor(4, 0), Donor(4, 1), Donor(5, 2), Donor(5, 3))


def test_a_standby_is_the_first_donor_as_it_computes_nothing():
    view = make((0, 1, CONTRIBUTOR), (1, 2, JOINER), (2, 1, STANDBY))
    assert view.donors == (Donor(1, 2), Donor(1, 0))


def test_a_joiner_keeps_what_is_left_of_its_donors_and_gets_no_new_one_beside_it():
    before = view_of(
        (0, 1, CONTRIBUTOR), (1, 1, CONTRIBUTOR), (2, 2, JOINER), (3, 1, CONTRIBUTOR), donors=(Donor(2, 0), Donor(2, 1))
    )
    assert make((1, 1, CONTRIBUTOR), (2, 2, JOINER), (3, 1, CONTRIBUTOR), before=before).donors == (Donor(2, 1),)


def test_a_joiner_that_lost_all_its_donors_gets_new_ones():
    before = view_of((0, 1, CONTRIBUTOR), (2, 2, JOINER), (3, 1, CONTRIBUTOR), donors=(Donor(2, 0),))
    assert make((2, 2, JOINER), (3, 1, CONTRIBUTOR), before=before).donors == (Donor(2, 3),)


def test_another_joiner_takes_no_donor_away():
    before = view_of((0, 1, CONTRIBUTOR), (1, 1, CONTRIBUTOR), (2, 2, JOINER), donors=(Donor(2, 0), Donor(2, 1)))
    view = make((0, 1, CONTRIBUTOR), (1, 1, CONTRIBUTOR), (2, 2, JOINER), (3, 2, JOINER), before=before)
    assert view.donors == (Donor(2, 0), Donor(2, 1), Donor(3, 0), Donor(3, 1))


def test_a_joiner_keeps_its_donor():
    before = view_of((0, 1, CONTRIBUTOR), (1, 1, CONTRIBUTOR), (2, 2, JOINER), donors=(Donor(2, 1),))
    view = make((0, 1, CONTRIBUTOR), (1, 1, CONTRIBUTOR), (2, 2, JOINER), before=before)
    assert view.donors == (Donor(2, 1),)


@pytest.mark.parametrize("joiner", [(2, 3, JOINER), (2, 2, JOINER)])
def test_a_new_incarnation_of_either_side_starts_over(joiner):
    before = view_of((0, 1, CONTRIBUTOR), (1, 1, CONTRIBUTOR), (2, 2, JOINER), donors=(Donor(2, 1),))
    view = make((0, 1, CONTRIBUTOR), (1, 2, JOINER), joiner, before=before)
    assert Donor(2, 0) in view.donors


def test_without_contributors_there_is_no_donor():
    assert make((0, 2, JOINER)).donors == ()


def test_one_member_a_replica():
    with pytest.raises(AssertionError):
        make((0, 1, CONTRIBUTOR), (0, 2, JOINER))


def test_missing_flushes_are_named():
    assert missing_flushes(TWO, pair(0), SIZES) == ((1, 0), (1, 1))


def test_a_flush_of_another_incarnation_does_not_count():
    assert missing_flushes(TWO, pair(0) + pair(1, incarnation=2), SIZES) == ((1, 0), (1, 1))


def test_a_flush_of_another_epoch_does_not_count():
    assert install(TWO, pair(0) + pair(1, epoch=1), SIZES) is None


def test_the_group_stands_where_the_furthest_contributor_stands():
    flushes = pair(0, committed_step=51) + pair(1, committed_step=50, prepared=True)
    assert install(TWO, flushes, SIZES).step == 51


def test_a_prepared_laggard_rolls_forward():
    flushes = pair(0, committed_step=51) + pair(1, committed_step=50, prepared=True)
    assert isinstance(install(TWO, flushes, SIZES), Install)


@pytest.mark.parametrize(("step", "prepared"), [(50, False), (49, True), (49, False)])
def test_a_contributor_that_cannot_reach_the_step_is_refused(step, prepared):
    flushes = pair(0, committed_step=51) + pair(1, committed_step=step, prepared=prepared)
    answer = install(TWO, flushes, SIZES)
    assert isinstance(answer, Refusal)
    assert (answer.replica, answer.incarnation) == (1, 1)


def test_one_rank_behind_is_enough_to_refuse_its_replica():
    flushes = (*pair(0, committed_step=51), flush(1, 0, committed_step=51), flush(1, 1, committed_step=50))
    assert "rank 1" in install(TWO, flushes, SIZES).reason


WITH_JOINER = view_of((0, 1, CONTRIBUTOR), (1, 2, JOINER))


def test_a_joiners_old_step_does_not_count():
    answer = install(WITH_JOINER, pair(0) + pair(1, incarnation=2, committed_step=3, role=JOINER), SIZES)
    assert (answer.step, answer.contributors) == (50, (0,))


def test_a_step_that_a_joiner_alone_committed_is_committed():
    joiner = pair(1, incarnation=2, committed_step=51, role=JOINER)
    assert install(WITH_JOINER, pair(0, prepared=True) + joiner, SIZES).step == 51


def test_a_step_that_everybody_left_has_prepared_is_committed_as_a_dead_member_may_have_told():
    flushes = (*pair(0, committed_step=50, prepared=True), *pair(1, committed_step=50, prepared=True))
    assert install(TWO, flushes, SIZES).step == 51


def test_a_step_that_one_rank_has_not_prepared_can_have_been_committed_by_nobody():
    flushes = (*pair(0, committed_step=50, prepared=True), *pair(1, committed_step=50, prepared=False))
    assert install(TWO, flushes, SIZES).step == 50


def test_a_joiner_ahead_of_unprepared_contributors_is_refused_itself():
    joiner = pair(1, incarnation=2, committed_step=51, role=JOINER)
    answer = install(WITH_JOINER, pair(0, prepared=False) + joiner, SIZES)
    assert isinstance(answer, Refusal)
    assert answer.replica == 1


def test_a_joiner_that_has_become_a_contributor_is_one():
    answer = install(WITH_JOINER, pair(0) + pair(1, incarnation=2, role=CONTRIBUTOR), SIZES)
    assert answer.contributors == (0, 1)


def test_nobody_contributing_cannot_be_installed():
    assert install(TWO, pair(0, role=JOINER) + pair(1, role=JOINER), SIZES) is None


THREE = view_of((0, 1, CONTRIBUTOR), (1, 1, CONTRIBUTOR), (2, 1, CONTRIBUTOR))


def test_no_more_contribute_than_allowed_and_the_others_stand_by():
    answer = install(THREE, pair(0) + pair(1) + pair(2), SIZES, 2)
    assert (answer.contributors, answer.standbys) == ((0, 1), (2,))


def test_a_standby_is_promoted_by_the_view_that_leaves_a_contributor_out():
    view = view_of((1, 1, CONTRIBUTOR), (2, 1, STANDBY))
    answer = install(view, pair(1) + pair(2, role=STANDBY), SIZES, 2)
    assert (answer.contributors, answer.standbys) == ((1, 2), ())


def test_who_computed_goes_on_and_keeps_its_micro_batches_whatever_its_number():
    flushes = pair(0, role=STANDBY) + done(1, 0, 2) + done(2, 1)
    answer = install(view_of((0, 1, STANDBY), (1, 1, CONTRIBUTOR), (2, 1, CONTRIBUTOR)), flushes, SIZES, 2)
    assert (answer.contributors, answer.standbys) == ((1, 2), (0,))
    assert answer.done == (ReplicaDone(1, (0, 2)), ReplicaDone(2, (1,)))


def test_a_standby_that_cannot_reach_the_step_is_refused_like_a_contributor():
    flushes = pair(0, committed_step=51) + pair(1, committed_step=50, role=STANDBY)
    answer = install(view_of((0, 1, CONTRIBUTOR), (1, 1, STANDBY)), flushes, SIZES, 1)
    assert isinstance(answer, Refusal)


def test_standbys_alone_are_enough_to_go_on():
    answer = install(
        view_of((0, 1, STANDBY), (1, 2, JOINER)), pair(0, role=STANDBY) + pair(1, incarnation=2, role=JOINER), SIZES, 2
    )
    assert (answer.contributors, answer.standbys) == ((0,), ())


def done(index, *batches, step=50, **fields):
    return pair(index, done_step=step, done_micro_batches=batches, **fields)


def test_finished_micro_batches_are_kept():
    answer = install(TWO, done(0, 0, 2) + done(1, 1), SIZES)
    assert answer.done == (ReplicaDone(0, (0, 2)), ReplicaDone(1, (1,)))


def test_micro_batches_of_the_step_behind_are_void():
    flushes = done(0, 0, step=51, committed_step=51) + done(1, 1, committed_step=50, prepared=True)
    assert install(TWO, flushes, SIZES).done == (ReplicaDone(0, (0,)),)


def test_a_micro_batch_is_never_kept_twice():
    answer = install(TWO, done(0, 0, 1) + done(1, 1, 2), SIZES)
    assert answer.done == (ReplicaDone(0, (0, 1)),)


def test_ranks_that_differ_keep_nothing():
    mixed = (flush(0, 0, done_step=50, done_micro_batches=(0, 1)), flush(0, 1, done_step=50, done_micro_batches=(0,)))
    assert install(TWO, mixed + done(1, 2), SIZES).done == (ReplicaDone(1, (2,)),)


def test_a_joiner_keeps_nothing():
    joiner = done(1, 3, incarnation=2, role=JOINER)
    assert install(WITH_JOINER, done(0, 0) + joiner, SIZES).done == (ReplicaDone(0, (0,)),)
