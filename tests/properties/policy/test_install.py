"""Whoever dies, and whatever they hold: one install gives each micro-batch to exactly one replica."""

from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.membership import Install, install, next_view
from controlplane.protocol.membership import Member, MemberRole, View
from tests.unit.policy.builders import CONTRIBUTOR, JOINER, STANDBY, flush
from trainer.core.shares import admitted, held_by, share_of_install

SLOTS, RANKS, STEP = 6, 2, 50
limits = st.one_of(st.none(), st.integers(1, SLOTS))


def view_after(members: dict[int, MemberRole], before: View | None, epoch: int) -> View:
    named = tuple(Member(replica, 1, role) for replica, role in members.items())
    return next_view(job_id="job_1", attempt=1, epoch=epoch, members=named, before=before, reason="")


@st.composite
def flushed(draw: st.DrawFn):
    """A view and what its members say: all at one step, each with micro-batches of its own or some of another's."""
    roles = draw(
        st.dictionaries(st.integers(0, SLOTS - 1), st.sampled_from([CONTRIBUTOR, STANDBY, JOINER]), min_size=1)
    )
    count = draw(st.integers(1, 12))
    holds = {
        replica: tuple(sorted(draw(st.sets(st.integers(0, count - 1))))) if role is CONTRIBUTOR else ()
        for replica, role in roles.items()
    }
    view = view_after(roles, None, 2)
    flushes = tuple(
        flush(replica, rank, role=role, committed_step=STEP, done_step=STEP, done_micro_batches=holds[replica])
        for replica, role in roles.items()
        for rank in range(RANKS)
    )
    return view, flushes, count, roles


@given(flushed(), limits)
def test_each_micro_batch_is_held_or_dealt_to_exactly_one(world, limit):
    view, flushes, count, roles = world
    order = install(view, flushes, dict.fromkeys(roles, RANKS), limit)
    holders = {replica for replica, role in roles.items() if role is not JOINER}
    if not holders:
        assert order is None
        return
    assert isinstance(order, Install)
    assert set(order.contributors) | set(order.standbys) == holders
    assert not set(order.contributors) & set(order.standbys)
    assert len(order.contributors) == min(limit or SLOTS, len(holders))
    everyone = [n for r in roles for n in (*held_by(order, r), *share_of_install(order, count, r))]
    assert sorted(everyone) == list(range(count))
    idle = [
        n
        for r in set(roles) - set(order.contributors)
        for n in (*held_by(order, r), *share_of_install(order, count, r))
    ]
    assert not idle


@given(flushed(), st.integers(1, SLOTS))
def test_nobody_that_computes_stands_by_while_a_standby_computes(world, limit):
    view, flushes, _, roles = world
    order = install(view, flushes, dict.fromkeys(roles, RANKS), limit)
    if isinstance(order, Install) and any(roles[replica] is CONTRIBUTOR for replica in order.standbys):
        assert all(roles[replica] is CONTRIBUTOR for replica in order.contributors)


@given(
    st.sets(st.integers(0, SLOTS - 1), min_size=1),
    st.lists(st.tuples(st.sampled_from(["dies", "joins", "level"]), st.integers(0, SLOTS - 1)), max_size=12),
    st.integers(1, SLOTS),
)
def test_through_any_history_as_many_compute_as_can_up_to_the_limit(first, history, limit):
    roles = dict.fromkeys(first, CONTRIBUTOR)
    view = view_after(roles, None, 1)

    def settle() -> None:
        order = install(
            view, tuple(flush(r, k, epoch=view.epoch, role=role) for r, role in roles.items() for k in range(RANKS)),
            dict.fromkeys(roles, RANKS), limit,
        )  # fmt: skip
        assert isinstance(order, Install)
        roles.update(dict.fromkeys(order.contributors, CONTRIBUTOR) | dict.fromkeys(order.standbys, STANDBY))

    settle()
    for event, replica in history:
        others = [r for r, role in roles.items() if role is not JOINER and r != replica]
        if event == "level" and roles.get(replica) is JOINER:
            named = [tuple(r for r, role in roles.items() if role is kind) for kind in (CONTRIBUTOR, STANDBY)]
            computing, waiting = admitted([replica], *named, limit)
            roles.update(dict.fromkeys(computing, CONTRIBUTOR) | dict.fromkeys(waiting, STANDBY))
        elif (event == "dies" and replica in roles and others) or (event == "joins" and replica not in roles):
            if event == "dies":
                del roles[replica]
            else:
                roles[replica] = JOINER
            view = view_after(roles, view, view.epoch + 1)
            settle()
        holders = [r for r, role in roles.items() if role is not JOINER]
        assert sum(role is CONTRIBUTOR for role in roles.values()) == min(limit, len(holders))
        for pair in view.donors:
            assert roles.get(pair.donor) is not None
