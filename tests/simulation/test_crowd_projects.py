"""Worlds of several jobs whose projects have quotas: who waits, yields and gives back, and that a breach is found."""

import msgspec
from msgspec.structs import replace as change

from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.plan import Plan
from controlplane.policy.queue.rows import Share
from controlplane.policy.rules import restart
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.spec import Resources, Scheduling
from controlplane.simulator import crowd
from controlplane.simulator.control import Decide
from controlplane.simulator.job import JobPlan
from controlplane.simulator.shared import Projects
from controlplane.simulator.timing import Timing
from controlplane.simulator.world import World, WorldPlan, job_spec
from tests.simulation.test_crowd import both, clean, small


def of_projects(*others: JobPlan, borrow: int | None = 0, priority: int = 300, steps: int = 100_000) -> World:
    """Four nodes of two devices; red may use four of them, blue the others. A job of red has two nodes."""
    first = msgspec.structs.replace(
        small(priority, steps), resources=Resources(nodes=2, gpus_per_node=2, min_replicas=2)
    )
    plan = WorldPlan(
        spec=first,
        name="long",
        project="red",
        others=others,
        nodes={f"node-{index}": 2 for index in range(4)},
        timing=Timing(saves_asked=True),
        shares=(Share(name="red", quota=4, borrow=borrow), Share(name="blue", quota=4)),
    )
    world = World(5, plan=plan, config=crowd.CONFIG)
    world.start()
    return world


def states(world: World) -> dict[str, str]:
    """Of those that were submitted."""
    return {run.name: str(run.rows.state) for run in world.runs.values() if run.is_here}


def test_beyond_its_quota_a_job_waits_though_devices_are_free_and_starts_when_its_project_has_ended_one() -> None:
    world = of_projects(JobPlan(name="more", spec=small(300), arrives_s=10.0, project="red"), steps=60)
    world.kernel.run(20.0)
    assert states(world) == {"long": "running", "more": "pending"}
    world.kernel.run(110.0)
    assert states(world) == {"long": "succeeded", "more": "succeeded"}
    clean(world)


def test_a_job_yields_for_the_quota_of_its_project_alone() -> None:
    world = of_projects(JobPlan(name="urgent", spec=small(900), arrives_s=40.0, project="red"))
    world.kernel.run(60.0)
    assert (world.promises.asked, world.promises.preempted) == (1, 1)
    assert states(world) == {"long": "preempted", "urgent": "running"}
    world.kernel.run(140.0)
    assert states(world) == {"long": "running", "urgent": "succeeded"}
    world.judge()
    clean(world)


def test_what_is_borrowed_comes_back_whatever_the_priority_of_whoever_has_it() -> None:
    plans = (
        JobPlan(name="lent", spec=small(900, steps=100_000), arrives_s=1.0, project="red"),
        JobPlan(name="third", spec=small(900, steps=100_000), arrives_s=2.0, project="blue"),
        JobPlan(name="mine", spec=small(100), arrives_s=40.0, project="blue"),
    )
    world = of_projects(*plans, borrow=None)
    world.kernel.run(20.0)
    assert world.promises.quotas.borrowed == 1
    world.kernel.run(60.0)
    assert "preempted" in (states(world)["lent"], states(world)["long"]), "red gives back what it owes"
    assert states(world)["mine"] in ("starting", "running", "succeeded")
    clean(world)


def test_a_start_beyond_the_quota_is_found() -> None:
    world = of_projects(JobPlan(name="more", spec=small(300), arrives_s=10.0, project="red"))
    world.kernel.run(20.0)
    long, _ = both(world)
    blue, red = (share for share in world.server.projects.shares)
    tight = tuple(msgspec.structs.replace(share, quota=2 if share.name == "red" else 4) for share in (blue, red))
    world.server.projects = Projects(tight, world.server.projects.of)
    world.promises.quotas.started(long)
    assert any("I-quota" in each and "uses 2 beyond its quota" in each for each in world.checkers.violations)


def test_half_of_the_worlds_have_quotas_and_some_of_their_jobs_time_limits() -> None:
    draws = [crowd.drawn(seed) for seed in range(40)]
    shared = [draw.plan for draw in draws if draw.plan.shares]
    assert 10 < len(shared) < 30
    assert {each.project for plan in shared for each in plan.others} == {"red", "blue", ""}
    assert any(each.spec.scheduling.time_limit_s for plan in shared for each in plan.others)


def placed_again(by: Decide = decide) -> World:
    """A job that began with two of its three replicas, as its project's quota has no more, loses both at once; two
    nodes are free all the time. `by`: the policy."""
    spec = msgspec.structs.replace(
        job_spec(spare_gpus=0, steps=100_000), scheduling=Scheduling(priority=300, elastic=True)
    )
    plan = WorldPlan(
        spec=spec,
        name="long",
        project="red",
        others=(JobPlan(name="other", spec=small(300, steps=100_000), arrives_s=1.0, project="blue"),),
        nodes={f"node-{index}": 2 for index in range(5)},
        timing=Timing(saves_asked=True),
        shares=(Share(name="red", quota=4, borrow=0), Share(name="blue", quota=4)),
    )
    world = World(5, plan=plan, config=crowd.CONFIG)
    world.start()
    long, _ = both(world)
    long.control.decide = by
    world.faults.schedule(100.0, 0)
    world.kernel.run(30.0)
    assert long.rows.attempt is not None and (long.rows.attempt.replicas, long.rows.attempt.yielded) == (3, 1)
    for process in long.trainer.living():
        world.faults.kill_rank(process)
    world.kernel.run(60.0)
    assert long.rows.attempt is not None and long.rows.attempt.number > 1, "it was placed again"
    return world


def test_a_job_is_placed_again_within_its_projects_quota_and_takes_back_nothing() -> None:
    world = placed_again()
    long, _ = both(world)
    attempt = long.rows.attempt
    assert attempt is not None
    assert (attempt.number, attempt.replicas, attempt.yielded) == (2, 3, 1)
    assert states(world) == {"long": "running", "other": "running"}
    world.judge()
    clean(world)


def test_a_restart_that_asks_nobody_is_found() -> None:
    """As restarts once were: all that the job asks for, whatever its project may use and what it had yielded."""

    def unbound(snapshot: JobSnapshot, config: PolicyConfig) -> Plan:
        plan, beyond, attempt = decide(snapshot, config), snapshot.elsewhere, snapshot.attempt
        if beyond is None or attempt is None or all(each.rule != restart.RULE for each in plan.decisions):
            return plan
        whole, free = change(attempt, yielded=0), change(beyond, again=None)
        return decide(change(snapshot, attempt=whole, elsewhere=free), config)

    found = placed_again(unbound).checkers.violations
    assert any("I-quota: red uses 2 beyond its quota, 0 are lent" in each for each in found), found
    assert any("I-part: placed again on 6 devices, of which it had kept 4" in each for each in found), found
