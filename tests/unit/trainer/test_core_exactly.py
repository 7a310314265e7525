"""What small changes of a rank's core no other test noticed: each of these fails on one of them."""

import pytest

from controlplane.protocol.membership import Donor, Member, View
from tests.unit.trainer.test_core import (
    CONTRIBUTOR,
    JOINED,
    JOINER,
    MEMBERS,
    NEW,
    agreeing,
    asked,
    computing,
    contributor,
    install,
    joiner,
)
from trainer.core import effects as do
from trainer.core import events as on
from trainer.core.rank import RankCore, Stage

AGAIN = View("job", 1, 3, JOINED.members, (Donor(joiner=2, donor=0),))


def prepared_joiner() -> RankCore:
    """It holds the sum of step 5 and all of the state; the barrier broke, and view 3 came."""
    core, _ = joiner(JOINED)
    for event in (on.Built(inside=True), on.Begun(), on.Met(over=False), on.Summed(held=True), on.Fetched()):
        core.handle(event)
    core.handle(on.ViewSeen(AGAIN))
    core.handle(on.Passed(level=None))
    return core


@pytest.mark.parametrize(("step", "keeps"), [(5, True), (6, True), (7, False), (4, False)])
def test_a_joiner_keeps_its_state_where_it_is_level_as_it_stands_or_with_what_it_prepared(step: int, keeps: bool):
    core = prepared_joiner()
    core.handle(on.InstallSeen(install(3, step)))
    assert core.handle(on.Agreed(same=True)) == [do.Confirm(stands=True, keeps=keeps)]


def test_one_that_did_not_prepare_the_step_is_not_level_with_the_next():
    core, _ = joiner(JOINED)
    core.handle(on.Fetched())
    core.handle(on.ViewSeen(AGAIN))
    core.handle(on.Built(inside=False))
    core.handle(on.InstallSeen(install(3, 6)))
    assert core.handle(on.Agreed(same=True)) == [do.Confirm(stands=True, keeps=False)]


def test_micro_batches_that_the_install_does_not_count_are_let_go_and_computed_again():
    core = contributor(Stage.SUMMING)
    core.handle(on.Summed(held=False))
    core.handle(on.ViewSeen(NEW))
    core.handle(on.InstallSeen(install(2, 5)))
    core.handle(on.Agreed(same=True))
    assert isinstance(asked(core.handle(on.Confirmed(stands=True, keeps=False))), do.Build)
    assert core.standing.done == ()
    assert core.handle(on.Built(inside=True)) == [do.Entered(2, 5, ())]
    assert core.handle(on.Begun()) == [do.Compute(5, (0, 2), fresh=True)]


def test_a_donor_serves_its_own_joiners_alone():
    members = (*MEMBERS, Member(2, 4, JOINER), Member(3, 1, JOINER))
    view = View("job", 1, 2, members, (Donor(joiner=2, donor=0), Donor(joiner=3, donor=1)))
    core = computing()
    core.handle(on.ViewSeen(view))
    assert core.handle(on.InstallSeen(install(2, 5, (0, 2)))) == [do.Serve(frozenset({(2, 4)}), 5, early=True)]


def test_an_install_that_comes_twice_is_acted_on_once():
    core = computing()
    core.handle(on.ViewSeen(JOINED))
    assert len(core.handle(on.InstallSeen(install(2, 5, (0, 2))))) == 1
    assert core.handle(on.InstallSeen(install(2, 5, (0, 2)))) == []


def test_it_is_in_a_view_change_from_the_first_view_until_its_group_stands():
    core = contributor(Stage.PASSING)
    assert not core.is_changing
    core = agreeing(core)
    assert core.is_changing
    core.handle(on.Agreed(same=True))
    core.handle(on.Confirmed(stands=True, keeps=False))
    assert core.is_changing, "its group is being built"
    core.handle(on.Built(inside=True))
    assert not core.is_changing


def test_the_lowest_contributor_saves_and_nobody_where_there_is_none():
    standing = contributor().standing
    for contributors, saves in (((0, 1), True), ((1, 0), False), ((1,), False), ((), False)):
        standing.contributors = contributors
        assert standing.is_saver is saves
    assert standing.role is CONTRIBUTOR


def test_a_joiner_goes_on_with_one_donor_of_several_that_it_had_asked():
    core, _ = joiner(JOINED)
    core.handle(on.ViewSeen(View("job", 1, 3, JOINED.members, (Donor(joiner=2, donor=0), Donor(joiner=2, donor=1)))))
    core.handle(on.Built(inside=False))
    core.handle(on.InstallSeen(install(3, 5)))
    assert core.handle(on.Agreed(same=True)) == [do.Confirm(stands=True, keeps=True)]
    assert core.handle(on.Confirmed(stands=True, keeps=True))[0] == do.GoOn(((0, 1),))


def test_a_joiner_that_is_not_level_yet_stays_one_when_another_is():
    members = (*JOINED.members, Member(3, 1, JOINER))
    core, _ = joiner(View("job", 1, 2, members, (Donor(joiner=2, donor=0), Donor(joiner=3, donor=1))))
    for event in (on.Built(inside=True), on.Begun(), on.Met(over=False), on.Summed(held=True)):
        core.handle(event)
    _, welcome = core.handle(on.Passed(level=(3,)))
    assert welcome == do.Welcome(frozenset({3}), None)
    assert core.standing.role is JOINER
    assert core.standing.contributors == (0, 1, 3)
    assert core.handle(on.Begun()) == [do.Meet(over=False)], "it computes nothing"


def test_what_it_computes_of_a_step_that_others_had_begun_is_said_as_it_enters():
    core = contributor(Stage.SUMMING)
    core.handle(on.Summed(held=False))
    core.handle(on.ViewSeen(View("job", 1, 2, MEMBERS[:1])))
    core.handle(on.InstallSeen(install(2, 5, (0,), contributors=(0,))))
    core.handle(on.Agreed(same=True))
    core.handle(on.Confirmed(stands=True, keeps=False))
    (entered,) = core.handle(on.Built(inside=True))
    assert entered == do.Entered(2, 5, (1, 2, 3)), "replica 1 is gone with what it held"
    assert core.handle(on.Begun()) == [do.Compute(5, (1, 2, 3), fresh=False)]
