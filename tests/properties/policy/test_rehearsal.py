"""A schedule of faults: the same moments for everybody, none lost, none given twice."""

from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.rehearsal import JITTER_RATIO, due, moment_s, wait_s
from controlplane.protocol.rank_faults import SCHEDULED
from controlplane.protocol.spec import FaultSchedule, Resiliency, Training
from tests.unit.policy.builders import change, spec

SCHEDULES = st.builds(
    FaultSchedule,
    kind=st.sampled_from([*SCHEDULED, "random"]),
    delay_s=st.floats(0.0, 1000.0),
    rank=st.integers(-1, 5),
    times=st.integers(1, 8),
)
SEEDS = st.integers(0, 2**31)
REPLICAS = (0, 1, 2)
MOST = 50  # more than any schedule here asks for, so that one without an end is seen


def job_with(schedule: FaultSchedule, seed: int, *, allowed: bool = True):
    training = Training(steps=100, global_batch=6, seed=seed)
    return spec(training=training, resiliency=Resiliency(allow_faults=allowed, faults=schedule))


def live_through(job, times_s):
    """Every fault given while training time passes through these seconds, a restart between each."""
    given_, fired = [], 0
    for training_s in times_s:
        for _ in range(MOST):
            fault = due(job, training_s=training_s, fired=fired, replicas=REPLICAS, ranks_per_replica=2)
            if fault is None:
                break
            given_.append((training_s, fault))
            fired += 1
    return given_


@given(SCHEDULES, SEEDS)
def test_each_delay_is_stretched_by_no_more_than_a_fifth(schedule, seed):
    moments = [moment_s(schedule, seed, number) for number in range(schedule.times)]
    gaps = [after - before for before, after in zip([0.0, *moments], moments, strict=False)]
    slack = 1e-6
    assert all(schedule.delay_s - slack <= gap <= schedule.delay_s * (1 + JITTER_RATIO) + slack for gap in gaps)


@given(SCHEDULES, SEEDS, st.lists(st.floats(0.001, 20_000.0), max_size=30))
def test_as_many_as_asked_for_whenever_anybody_looks(schedule, seed, looks):
    last_s = moment_s(schedule, seed, schedule.times - 1) + 1.0
    faults = live_through(job_with(schedule, seed), [*sorted(looks), max([last_s, *looks])])
    assert [fault.number for _, fault in faults] == list(range(schedule.times))
    assert all(at_s >= moment_s(schedule, seed, fault.number) for at_s, fault in faults)


@given(SCHEDULES, SEEDS, st.lists(st.floats(0.001, 20_000.0), max_size=10))
def test_whom_and_what_it_hits_does_not_depend_on_who_looks_when(schedule, seed, looks):
    job = job_with(schedule, seed)
    last_s = [moment_s(schedule, seed, schedule.times - 1) + 20_001.0]
    often, once = live_through(job, [*sorted(looks), *last_s]), live_through(job, last_s)
    assert [fault for _, fault in often] == [fault for _, fault in once]


@given(SCHEDULES, SEEDS, st.floats(0.0, 1e6))
def test_nothing_is_due_where_faults_are_not_allowed(schedule, seed, training_s):
    job = job_with(schedule, seed, allowed=False)
    assert wait_s(job, training_s=training_s, fired=0) is None
    assert due(job, training_s=training_s, fired=0, replicas=REPLICAS, ranks_per_replica=2) is None


@given(SCHEDULES, SEEDS, st.sets(st.sampled_from(REPLICAS)))
def test_only_a_rank_that_trains_is_hit_and_a_fixed_one_is_waited_for(schedule, seed, training):
    job = job_with(schedule, seed)
    fault = due(job, training_s=1e9, fired=0, replicas=tuple(sorted(training)), ranks_per_replica=2)
    if fault is None:
        assert not training or divmod(schedule.rank, 2)[0] not in training
        return
    assert fault.target[0] in training
    assert fault.target[1] in (0, 1)
    if schedule.rank >= 0:
        assert fault.target == divmod(schedule.rank, 2)


@given(SEEDS)
def test_random_stays_within_what_an_entrypoint_can_be_given(seed):
    job = change(job_with(FaultSchedule(kind="random", times=8), seed), entrypoint=["python", "train.py"])
    kinds = {fault.kind for _, fault in live_through(job, [1e9])}
    assert kinds <= {"rank_killed", "rank_hung"}
