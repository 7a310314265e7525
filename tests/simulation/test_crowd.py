"""Worlds of several jobs: the queue and preemptions on one fleet, under faults. A seed that failed once stays here."""

from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from controlplane.changes.kinds import CreatePreemption, CreateReplica, ReplicaKey
from controlplane.policy.plan import AskPreemption, Decision
from controlplane.policy.rules import lifecycle, make_room
from controlplane.protocol.spec import Resources, Scheduling, TrainSpec
from controlplane.protocol.states import AttemptState, JobState, RequestKind, RequestState
from controlplane.simulator import crowd
from controlplane.simulator.__main__ import main
from controlplane.simulator.job import JobPlan, JobRun
from controlplane.simulator.timing import Timing
from controlplane.simulator.world import World, WorldPlan, job_spec

SEEDS = range(2000, 2006)
FOUND = {
    1053: "a certificate called a step lost of which the first report of a new attempt was",
    1192: "a replica was started on a device that its dead rank had left, and another job had taken",
    1252: "a replica was started on a device that its dead rank had left, and another job had taken",
    1298: "a replica was started on a device that its dead rank had left, and another job had taken",
    3008: "a restart took back a replica that the job had given",
    3018: "a restart took back a replica that the job had given",
}
"""What each of them found, when it was found."""


def scene(*, urgent: int = 900, preemptible: bool = True, arrives_s: float = 40.0, nodes: int = 3) -> World:
    """Three nodes (or more), all of them one job's; another one of three nodes comes."""
    first = msgspec.structs.replace(
        job_spec(spare_gpus=0, steps=100_000), scheduling=Scheduling(priority=300, preemptible=preemptible)
    )
    second = msgspec.structs.replace(job_spec(spare_gpus=0, steps=20), scheduling=Scheduling(priority=urgent))
    plan = WorldPlan(
        spec=first,
        name="long",
        others=(JobPlan(name="urgent", spec=second, arrives_s=arrives_s),),
        nodes={f"node-{index}": 2 for index in range(nodes)},
        timing=Timing(saves_asked=True),
    )
    world = World(5, plan=plan, config=crowd.CONFIG)
    world.start()
    return world


def both(world: World) -> tuple[JobRun, JobRun]:
    """The one that was there, and the urgent one."""
    long, urgent = world.runs.values()
    return long, urgent


def clean(world: World) -> None:
    """No invariant was broken."""
    assert world.checkers.violations == []


@pytest.mark.parametrize("seed", SEEDS)
def test_several_jobs_keep_every_promise_under_faults(seed: int) -> None:
    assert crowd.run(seed).violations == ()


@pytest.mark.parametrize("seed", sorted(FOUND))
def test_a_seed_of_several_jobs_that_failed_once_passes(seed: int) -> None:
    assert crowd.run(seed).violations == ()


def test_the_same_seed_is_the_same_world() -> None:
    assert crowd.run(2001, 3).digest == crowd.run(2001, 3).digest


def test_worlds_of_a_seed_have_as_many_jobs_as_are_wanted_with_priorities_of_their_own() -> None:
    draws = [crowd.drawn(seed, 4) for seed in range(20)]
    assert {len(draw.plan.others) for draw in draws} == {3}
    specs = [spec for draw in draws for spec in (draw.plan.spec, *(each.spec for each in draw.plan.others))]
    assert {spec.scheduling.priority for spec in specs} == set(crowd.PRIORITIES)
    assert {spec.scheduling.preemptible for spec in specs} == {True, False}


def test_an_urgent_job_gets_its_devices_and_the_one_that_yields_comes_back_where_it_was() -> None:
    world = scene()
    long, urgent = both(world)
    world.kernel.run(45.0)
    assert long.rows.state is JobState.PREEMPTED
    at_step = long.rows.committed_step
    assert at_step > 20, "it had trained"
    world.kernel.run(60.0)
    assert urgent.rows.committed_step > 0, "it has come to train"
    world.kernel.run(110.0)
    assert (urgent.rows.state, long.rows.state) == (JobState.SUCCEEDED, JobState.RUNNING)
    assert long.rows.attempt is not None
    assert long.rows.attempt.resume_step >= at_step, "nothing committed is lost"
    assert (world.promises.asked, world.promises.preempted, world.promises.resumed) == (1, 1, 1)
    world.judge()
    clean(world)


def small(priority: int, steps: int = 20) -> TrainSpec:
    """A job of one replica."""
    spec = msgspec.structs.replace(job_spec(spare_gpus=0, steps=steps), scheduling=Scheduling(priority=priority))
    return msgspec.structs.replace(spec, resources=Resources(nodes=1, gpus_per_node=2))


def giving(*others: JobPlan, min_replicas: int = 1) -> World:
    """Three replicas on all three nodes, and urgent jobs of one replica each."""
    first = msgspec.structs.replace(
        job_spec(spare_gpus=0, steps=100_000, min_replicas=min_replicas), scheduling=Scheduling(priority=300)
    )
    nodes = {f"node-{index}": 2 for index in range(3)}
    plan = WorldPlan(spec=first, name="long", others=others, nodes=nodes, timing=Timing(saves_asked=True))
    world = World(5, plan=plan, config=crowd.CONFIG)
    world.start()
    return world


def test_one_replica_leaves_for_a_small_urgent_job_the_others_train_on_and_it_comes_back() -> None:
    world = giving(JobPlan(name="urgent", spec=small(900), arrives_s=40.0))
    long, urgent = both(world)
    world.kernel.run(40.0)
    before = long.rows.committed_step
    world.kernel.run(46.0)
    attempt = long.rows.attempt
    assert attempt is not None
    assert (long.rows.state, attempt.number, attempt.yielded) == (JobState.RUNNING, 1, 1)
    assert (urgent.rows.state, long.rows.incidents) == (JobState.RUNNING, 0), "no fault, no incident"
    assert long.rows.committed_step > before + 3, "the others train on"
    world.kernel.run(110.0)
    assert urgent.rows.state is JobState.SUCCEEDED
    assert (attempt.number, attempt.yielded, long.rows.restarts) == (1, 0, 0)
    assert [str(row.state) for row in long.rows.replicas.values()] == ["active"] * 3
    assert (world.promises.given, world.promises.grown, world.promises.preempted) == (1, 1, 0)
    world.judge()
    clean(world)


def test_a_job_gives_no_replica_below_its_least_and_yields_whole_instead() -> None:
    world = giving(JobPlan(name="urgent", spec=small(900), arrives_s=40.0), min_replicas=3)
    world.kernel.run(60.0)
    long, _ = both(world)
    assert (world.promises.given, world.promises.preempted) == (0, 1)
    assert long.rows.attempts, "its attempt ended"
    world.judge()
    clean(world)


def test_what_it_gave_is_not_taken_back_while_somebody_of_its_priority_waits_for_it() -> None:
    waits = JobPlan(name="waits", spec=small(300, steps=100_000), arrives_s=50.0)
    world = giving(JobPlan(name="urgent", spec=small(900), arrives_s=40.0), waits)
    world.kernel.run(120.0)
    long, urgent, third = world.runs.values()
    assert (urgent.rows.state, third.rows.state) == (JobState.SUCCEEDED, JobState.RUNNING)
    assert long.rows.attempt is not None
    assert (long.rows.attempt.yielded, world.promises.grown) == (1, 0)
    world.judge()
    clean(world)


def test_a_request_for_replicas_that_is_withdrawn_in_time_takes_none() -> None:
    world = giving(JobPlan(name="urgent", spec=small(900), arrives_s=40.0))
    long, urgent = both(world)
    world.kernel.run(40.05)
    assert long.rows.requests, "it is asked"
    urgent.rows.cancel_requested = True
    world.server.ring(urgent.id)
    world.kernel.run(80.0)
    assert long.rows.attempt is not None
    assert (urgent.rows.state, long.rows.attempt.yielded) == (JobState.CANCELLED, 0)
    assert [str(row.state) for row in long.rows.replicas.values()] == ["active"] * 3
    clean(world)


def test_a_job_that_is_left_with_too_few_replicas_is_found() -> None:
    world = giving(JobPlan(name="urgent", spec=small(900), arrives_s=1000.0))
    world.kernel.run(20.0)
    (long,) = (run for run in world.runs.values() if run.is_here)
    assert long.rows.attempt is not None
    lives = tuple((row.index, row.incarnation) for row in long.rows.replicas.values())
    act = AskPreemption(victim=long.id, attempt=1, lost_gpu_s=1.0, why="it is so", gives=lives)
    world.promises.made(long, msgspec.structs.replace(asks(long), actions=(act,)))
    assert any("I-part" in each and "0 replicas would be left" in each for each in world.checkers.violations)


@pytest.mark.parametrize("asks", [{"urgent": 300}, {"preemptible": False}], ids=["no less urgent", "not preemptible"])
def test_nobody_yields_who_need_not(asks: dict[str, int]) -> None:
    world = scene(**asks)
    world.kernel.run(100.0)
    long, urgent = both(world)
    assert (long.rows.state, urgent.rows.state) == (JobState.RUNNING, JobState.PENDING)
    assert world.promises.asked == 0
    clean(world)


def test_when_the_urgent_job_is_cancelled_before_the_save_is_there_nobody_has_yielded() -> None:
    world = scene()
    long, urgent = both(world)
    world.kernel.run(40.2)
    assert long.rows.requests, "it is asked"
    urgent.rows.cancel_requested = True
    world.server.ring(urgent.id)
    world.kernel.run(80.0)
    assert (long.rows.state, urgent.rows.state) == (JobState.RUNNING, JobState.CANCELLED)
    assert Counter(long.rows.answers) == {"preempt:taken": 1, "preempt:withdrawn": 1}
    assert long.rows.attempt is not None
    assert long.rows.attempt.number == 1
    clean(world)


def test_a_fault_of_one_job_is_no_fault_of_the_other() -> None:
    world = scene(urgent=300, arrives_s=0.0, nodes=6)
    world.faults.schedule(100.0, 0)
    long, other = both(world)
    world.kernel.run(30.0)
    world.faults.kill_rank(next(process for process in long.trainer.living() if process.able()))
    world.kernel.run(70.0)
    assert long.rows.evictions == 1
    assert (other.rows.evictions, other.rows.restarts, other.rows.incidents) == (0, 0, 0)
    clean(world)


def asks(victim: JobRun) -> Decision:
    """A decision of another job that asks it to yield."""
    assert victim.rows.attempt is not None
    act = AskPreemption(victim=victim.id, attempt=victim.rows.attempt.number, lost_gpu_s=1.0, why="it is so")
    return Decision(
        rule=make_room.RULE, choice="preempt", reason_code="outranked", sentence="so", key="k", actions=(act,)
    )


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda run: setattr(run, "spec", with_scheduling(run, priority=900)), "of no lower priority"),
        (lambda run: setattr(run, "spec", with_scheduling(run, preemptible=False)), "not preemptible"),
        (lambda run: setattr(run.rows.attempt, "started_s", 35.0), "after it began"),
        (lambda run: setattr(run.rows.attempt, "state", AttemptState.STOPPING), "does not run"),
    ],
    ids=["priority", "not preemptible", "just begun", "does not run"],
)
def test_who_is_asked_against_the_rules_is_found(break_it: Callable[[JobRun], None], says: str) -> None:
    world = scene(urgent=300)
    world.kernel.run(41.0)
    long, urgent = both(world)
    urgent.spec = with_scheduling(urgent, priority=900)
    world.promises.made(urgent, asks(long))
    clean(world)
    break_it(long)
    world.promises.made(urgent, asks(long))
    assert any("I-yield" in each and says in each for each in world.checkers.violations)


def with_scheduling(run: JobRun, **fields: object) -> TrainSpec:
    """Its spec with another scheduling."""
    return msgspec.structs.replace(run.spec, scheduling=msgspec.structs.replace(run.spec.scheduling, **fields))


def test_an_attempt_that_starts_while_its_job_is_to_yield_is_found() -> None:
    world = scene(urgent=300)
    world.kernel.run(41.0)
    long, _ = both(world)
    long.control.asked.ask(RequestKind.PREEMPT, "somebody", "so", attempt=1)
    (request,) = long.rows.requests.values()
    long.rows.requests[request.id] = msgspec.structs.replace(request, state=RequestState.TAKEN)
    assert long.rows.attempt is not None
    long.rows.attempt.number = 2
    world.promises.made(long, msgspec.structs.replace(asks(long), rule=lifecycle.RULE, actions=()))
    assert any("I-kept: starts while it is to yield" in each for each in world.checkers.violations)


def test_too_many_preemptions_of_a_job_within_an_hour_are_found() -> None:
    world = scene(urgent=300)
    world.kernel.run(41.0)
    long, urgent = both(world)
    urgent.spec = with_scheduling(urgent, priority=900)
    for number in range(world.config.max_preemptions_of_job + 1):
        urgent.store.commit([CreatePreemption(long.id, 1, float(number), "it is so")])
    world.promises.made(urgent, asks(long))
    assert any("3 times within an hour" in each for each in world.checkers.violations)


def test_too_many_preemptions_of_a_project_within_an_hour_are_found() -> None:
    world = scene(urgent=300)
    world.kernel.run(41.0)
    long, urgent = both(world)
    world.config = msgspec.structs.replace(world.config, max_preemptions_of_job=9, max_preemptions_of_project=1)
    urgent.spec = with_scheduling(urgent, priority=900)
    for number in range(2):
        urgent.store.commit([CreatePreemption(long.id, 1, float(number), "it is so")])
    world.promises.made(urgent, asks(long))
    (said,) = world.checkers.violations
    assert "its project 2 times in an hour" in said


def test_a_gang_in_part_is_found() -> None:
    world = scene(urgent=300)
    world.kernel.run(20.0)
    long, _ = both(world)
    assert long.rows.attempt is not None
    long.rows.attempt.number, long.rows.attempt.replicas = 2, 0
    world.promises.made(long, asks(long))
    assert any("I-gang" in each for each in world.checkers.violations)


def test_steps_that_were_promised_and_are_lost_are_found() -> None:
    world = scene()
    long, _ = both(world)
    world.kernel.run(50.0)
    assert long.rows.state is JobState.PREEMPTED
    long.rows.saves.clear()
    world.kernel.run(110.0)
    assert any("I-kept" in each for each in world.checkers.violations)


def test_who_waits_for_what_is_free_is_found() -> None:
    world = scene(arrives_s=1000.0)
    world.kernel.run(30.0)
    long, _ = both(world)
    world.people.preempt(500.0)
    world.kernel.run(60.0)
    assert long.rows.state is JobState.PREEMPTED
    world.promises.note_waiting()
    world.promises.judge()
    clean(world)
    long.rows.parked_by = ""
    world.promises.note_waiting()
    world.promises.judge()
    assert any("I-starve" in each for each in world.checkers.violations)


def test_two_jobs_on_one_device_are_found() -> None:
    world = scene(urgent=300)
    world.kernel.run(41.0)
    long, urgent = both(world)
    row = next(iter(long.rows.replicas.values()))
    urgent.store.commit([CreateReplica(ReplicaKey(1, 0, 1), row.placements)])
    assert any("I5" in each and "of long" in each for each in world.checkers.violations)


def test_a_request_of_a_person_to_one_job_is_no_request_to_the_other() -> None:
    world = scene(urgent=300, arrives_s=0.0)
    world.kernel.run(20.0)
    long, urgent = both(world)
    long.control.asked.ask(RequestKind.CHECKPOINT, "user:ada", "before I change something")
    drain = long.control.asked.ask(RequestKind.DRAIN, "user:ada", "rack 7", node_id="node-1", before="ready")
    assert [row.kind for row in urgent.rows.requests.values()] == [RequestKind.DRAIN]
    assert drain in urgent.rows.requests, "a drain is the fleet's"


def test_the_command_line_runs_worlds_of_several_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mixed", "--jobs", "2", "--seed", "2001"]) == 0
    assert "job-2: lifecycle" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--jobs", "2"])


def test_an_elastic_job_starts_with_what_there_is_and_grows_when_the_others_have_ended() -> None:
    spec = job_spec(spare_gpus=0, steps=100_000)
    grows = msgspec.structs.replace(spec, scheduling=Scheduling(priority=300, elastic=True))
    first = JobPlan(name="elastic", spec=grows, arrives_s=5.0)
    nodes = {f"node-{index}": 2 for index in range(3)}
    two = msgspec.structs.replace(small(500, steps=40), resources=Resources(nodes=2, gpus_per_node=2))
    world = World(5, plan=WorldPlan(spec=two, name="small", others=(first,), nodes=nodes), config=crowd.CONFIG)
    world.start()
    world.kernel.run(30.0)
    other, elastic = both(world)
    attempt = elastic.rows.attempt
    assert attempt is not None and other.rows.state is JobState.RUNNING
    assert (attempt.replicas, attempt.yielded, elastic.rows.state) == (3, 2, JobState.RUNNING)
    world.kernel.run(140.0)
    assert other.rows.state is JobState.SUCCEEDED
    assert (attempt.number, attempt.yielded, len(elastic.rows.replicas)) == (1, 0, 3)
    assert {str(row.state) for row in elastic.rows.replicas.values()} == {"active"}
    assert all(row.contributing for row in elastic.rows.replicas.values())
    world.judge()
    clean(world)
