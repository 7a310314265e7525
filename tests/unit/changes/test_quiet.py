"""A hello from which nothing follows is known as such before anything is asked of each job, and only such a one."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from controlplane.changes.handshake import MAX_AHEAD, Fenced, Greeting, greeted, is_quiet, learned
from controlplane.changes.kinds import Change
from controlplane.protocol.frames import AgentHello, JobSeen, RankStatus
from controlplane.protocol.launch import RankRef
from controlplane.protocol.states import ReplicaState
from controlplane.simulator.rows import JOB_ID

from .builders import World, training
from .greetings import HELLO, NODE, alive, greeting, started

RANKS = (alive(0), alive(1), alive(0, incarnation=2), alive(0, replica=0), alive(0, attempt=2))
"""Two of the node, and three that are not."""
SEEN = st.builds(
    JobSeen,
    job_id=st.just(JOB_ID),
    attempt=st.sampled_from((0, 1, 2, MAX_AHEAD + 3)),
    epoch=st.sampled_from((0, 1, 2, 3, MAX_AHEAD + 4)),
    end=st.sampled_from(("", "", "", "failed", "succeeded")),
    incarnations=st.sampled_from(({}, {1: 1}, {1: 4})),
)


def said(jobs: Sequence[JobSeen] = (), ranks: Sequence[RankStatus] = ()) -> AgentHello:
    return msgspec.structs.replace(HELLO, jobs=tuple(jobs), ranks=tuple(ranks))


def quiet(world: World, hello: AgentHello, met: Greeting) -> bool:
    """By the rows of the job."""
    here = world.store.standing()
    held = {
        RankRef(JOB_ID, rank.attempt, rank.replica, rank.incarnation, rank.rank): rank.fenced
        for rank in world.store.held(NODE)
    }
    return is_quiet(hello, met, {JOB_ID: Fenced(here.newest, here.epoch)}, held)


def follows(world: World, hello: AgentHello, met: Greeting) -> list[Change]:
    """All that it changes."""
    found = [change for seen in hello.jobs for change in learned(world.store, seen, met)]
    return [*found, *greeted(world.store, hello.ranks, met)]


def test_who_comes_back_as_he_was_is_quiet_and_in_whatever_state_his_ranks_are() -> None:
    world = started(training())
    hello = said([JobSeen(job_id=JOB_ID, attempt=1, epoch=2)], [alive(0), alive(1, step=9, phase_age_s=7.0)])
    assert quiet(world, hello, greeting())
    assert follows(world, hello, greeting()) == []


@pytest.mark.parametrize("lost", ["behind", "renewed"])
def test_whose_words_may_be_lost_is_not_quiet(lost: str) -> None:
    assert not quiet(started(training()), said(ranks=[alive(0)]), greeting(**{lost: True}))


@pytest.mark.parametrize("rank", RANKS[2:])
def test_who_lists_a_rank_that_he_does_not_have_is_not_quiet(rank: RankStatus) -> None:
    assert not quiet(started(training()), said(ranks=[alive(0), rank]), greeting())


def test_who_lists_a_rank_that_was_evicted_meanwhile_is_not_quiet() -> None:
    world = started(training())
    world.rows.replicas[1].state = ReplicaState.EVICTED
    assert not quiet(world, said(ranks=[alive(0)]), greeting())


def test_what_he_knows_of_a_job_that_is_over_is_not_asked() -> None:
    hello = said([JobSeen(job_id="over", attempt=9, epoch=99, end="failed")])
    assert is_quiet(hello, greeting(), {}, {})


@given(
    st.lists(SEEN, max_size=3),
    st.lists(st.sampled_from(RANKS), max_size=4),
    st.sampled_from(({}, {"behind": True}, {"renewed": True}, {"renewed": True, "rebooted": True})),
    st.sampled_from((ReplicaState.ACTIVE, ReplicaState.EVICTED)),
)
def test_of_a_quiet_hello_nothing_follows(
    jobs: list[JobSeen], ranks: list[RankStatus], met: dict[str, bool], state: ReplicaState
) -> None:
    world = started(training())
    world.rows.replicas[1].state = state
    hello = said(jobs, ranks)
    found = quiet(world, hello, greeting(**met))
    event(f"quiet: {found}")
    if found:
        assert follows(world, hello, greeting(**met)) == []
