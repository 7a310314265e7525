"""Whatever the world looks like: safety first, then liveness."""

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import claims, decide
from controlplane.policy.failures import find_failures
from controlplane.policy.plan import AnnounceView, EndAttempt, PlaceAttempt, SetReplicaState, StartReplica, StopReplica
from controlplane.policy.signals import KINDS
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.membership import MemberRole
from controlplane.protocol.states import JobState, ReplicaState
from tests.unit.policy.builders import (
    CONTRIBUTOR,
    JOINER,
    NOW_S,
    change,
    flush,
    install_of,
    job,
    node,
    replica,
    running,
    signal,
    spec,
    view_of,
)

CONFIG = PolicyConfig()
STATES = st.sampled_from(
    [ReplicaState.ACTIVE, ReplicaState.CATCHING_UP, ReplicaState.FORMING, ReplicaState.EVICTED, ReplicaState.SUSPECT]
)
INFERRED = frozenset({"hang", "node_silent", "unflushed", "setup_timeout", "catch_up_timeout", "unreachable", "stuck"})


@st.composite
def signals(draw: st.DrawFn):
    found = []
    for number in range(draw(st.integers(0, 4))):
        index, kind = draw(st.integers(0, 2)), draw(st.sampled_from((*KINDS, "a_kind_of_tomorrow")))
        about_node = kind.startswith(("node_", "device_", "signature_")) or kind == "xid"
        found.append(
            signal(
                kind,
                number,
                seen_s=NOW_S - draw(st.floats(0.0, 60.0)),
                replica=None if about_node else index,
                incarnation=None if about_node else 1,
                rank=None if about_node else 0,
                node_id=f"n{draw(st.integers(0, 4))}" if about_node else None,
                device_index=None if kind.startswith("node_") else 0,
                value=float(draw(st.sampled_from([0, 1, 13, 63, 79, 137]))),
            )
        )
    return tuple(found)


@st.composite
def worlds(draw: st.DrawFn) -> JobSnapshot:
    rows, members = [], []
    for index in range(3):
        state = draw(STATES)
        member = state not in (ReplicaState.FORMING, ReplicaState.EVICTED)
        contributing = member and state is not ReplicaState.CATCHING_UP
        rows.append(
            replica(
                index,
                state=state,
                contributing=contributing,
                in_view=member,
                waiting=draw(st.booleans()),
                stopped=draw(st.booleans()) if state is ReplicaState.EVICTED else False,
                joined_ranks=draw(st.integers(0, 2)) if state is ReplicaState.FORMING else 2,
                exited_ranks=draw(st.sampled_from([0, 0, 0, 1])),
                failed_starts=draw(st.integers(0, 7)),
                state_since_s=NOW_S - draw(st.floats(0.0, 1000.0)),
            )
        )
        if member:
            members.append((index, 1, CONTRIBUTOR if contributing else JOINER))
    view = view_of(*members) if members else None
    flushes = tuple(
        flush(i, rank, committed_step=draw(st.integers(49, 51)), prepared=draw(st.booleans()), role=role)
        for i, _, role in members
        for rank in range(2)
        if draw(st.booleans())
    )
    nodes = tuple(
        node(i, free=i >= 3, connected=draw(st.booleans()), silent_s=draw(st.floats(0.0, 30.0)))
        for i in range(draw(st.integers(3, 6)))
    )
    return running(
        job=job(
            state=draw(st.sampled_from([JobState.RUNNING, JobState.RECOVERING])),
            spec=spec(min_replicas=draw(st.integers(1, 2))),
            progressed_s=draw(st.sampled_from([None, NOW_S - 0.5, NOW_S - 20.0])),
        ),
        replicas=tuple(rows),
        view=view,
        view_since_s=NOW_S - draw(st.floats(0.0, 60.0)),
        install=install_of(view) if view and draw(st.booleans()) else None,
        flushes=flushes,
        signals=draw(signals()),
        nodes=nodes,
        blind=draw(st.booleans()),
        suspect_devices=draw(st.sampled_from([0, 50])),
        reissued_views=draw(st.integers(0, 4)),
    )


def acts(world: JobSnapshot) -> list:
    return [action for decision in decide(world, CONFIG).decisions for action in decision.actions]


# --- safety -----------------------------------------------------------------------


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_equal_worlds_give_equal_plans(world):
    assert decide(world, CONFIG) == decide(world, CONFIG)


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_at_most_one_new_epoch_and_always_the_next(world):
    epochs = [a.view.epoch for a in acts(world) if isinstance(a, AnnounceView)]
    epochs += [a.epoch for a in acts(world) if isinstance(a, PlaceAttempt)]
    assert epochs in ([], [world.job.epoch + 1])


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_a_new_view_holds_live_members_with_a_contributor_and_no_failed_one(world):
    failed = {failure.replica.index for failure in find_failures(world, CONFIG) if failure.proved}
    live = {row.index for row in world.replicas if row.state is not ReplicaState.EVICTED}
    for action in acts(world):
        if isinstance(action, AnnounceView):
            members = {member.replica for member in action.view.members}
            assert members <= live - failed
            assert any(member.role is MemberRole.CONTRIBUTOR for member in action.view.members)


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_who_is_left_out_is_stopped_and_who_is_stopped_has_failed(world):
    stopped = {a.replica for a in acts(world) if isinstance(a, StopReplica)}
    evicted = {a.replica for a in acts(world) if isinstance(a, SetReplicaState) and a.to is ReplicaState.EVICTED}
    assert stopped == evicted <= {failure.replica.index for failure in find_failures(world, CONFIG)}


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_no_device_is_given_twice_or_to_two(world):
    given_now = [(p.node_id, p.device_index) for a in acts(world) if isinstance(a, StartReplica) for p in a.placements]
    assert len(given_now) == len(set(given_now))
    stopped = {a.replica for a in acts(world) if isinstance(a, StopReplica)}
    starting = {a.replica for a in acts(world) if isinstance(a, StartReplica)}
    for row in world.replicas:
        if row.state is not ReplicaState.EVICTED and row.index not in stopped | starting:
            assert not {(p.node_id, p.device_index) for p in row.placements} & set(given_now)


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_the_blind_never_act_on_silence(world):
    kinds = {failure.kind for failure in find_failures(change(world, blind=True), CONFIG)}
    assert not kinds & INFERRED


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_two_decisions_never_claim_one_thing(world):
    seen: set[str] = set()
    for decision in decide(world, CONFIG).decisions:
        assert not claims(decision) & seen
        seen |= claims(decision)


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_every_decision_is_reasoned_and_every_key_unique(world):
    found = decide(world, CONFIG).decisions
    assert all(d.rule and d.choice and d.reason_code and d.sentence and d.key for d in found)
    assert len({d.key for d in found}) == len(found)


# --- liveness ------------------------------------------------------------------------


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_a_job_in_trouble_is_always_looked_at_again(world):
    plan = decide(world, CONFIG)
    ended = any(isinstance(a, EndAttempt) for d in plan.decisions for a in d.actions)
    troubled = world.job.state is JobState.RECOVERING and world.signals
    assert plan.next_pass_s is None or plan.next_pass_s > world.now_s
    assert plan.next_pass_s is not None or not troubled or ended


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_a_proved_death_is_acted_on_at_once(world):
    if any(failure.proved for failure in find_failures(world, CONFIG)):
        kinds = {type(action) for action in acts(world)}
        assert kinds & {StopReplica, EndAttempt}
