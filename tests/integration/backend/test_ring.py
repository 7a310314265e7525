"""The whole ring: a rank dies, its replica is left out and replaced, the incident is proved."""

import pytest
from asgiref.sync import sync_to_async

from controlplane.dispatch.models import Command
from controlplane.jobs.models import Job, Rank, Replica
from controlplane.recovery.models import Decision, Incident, Signal, ViewRow
from controlplane.runtime import beats
from controlplane.runtime.models import Event, ProcessBeat
from tests.integration.backend.conftest import eventually, submit
from tests.integration.backend.fleet_of_cores import World
from tests.integration.backend.servers import RedisServer, Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]


async def running(job: Job, stack: Stack, *, steps: int = 5) -> None:
    """Until the job trains."""
    await eventually(
        "the job trains",
        lambda: Job.objects.filter(pk=job.id, state="running", committed_step__gte=steps).exists(),
        stack=stack,
    )


async def test_a_submitted_job_starts_every_rank_installs_a_view_and_commits_steps(stack: Stack, world: World) -> None:
    job = await submit()
    await running(job, stack)
    rows = await sync_to_async(list)(Replica.objects.filter(attempt__job=job).values_list("state", "contributing"))
    assert rows == [("active", True)] * 3
    view = await sync_to_async(ViewRow.objects.get)(job=job)
    assert view.install["step"] == 0
    assert len(world.ranks) == 6


async def test_a_dead_replica_is_evicted_replaced_and_its_incident_certified(stack: Stack, world: World) -> None:
    job = await submit()
    await running(job, stack)
    epoch = (await sync_to_async(Job.objects.get)(pk=job.id)).epoch
    world.kill_replica(1)
    incident = await eventually(
        "the incident is resolved", lambda: Incident.objects.filter(job=job, state="resolved").first(), stack=stack
    )
    fresh = await sync_to_async(Job.objects.get)(pk=job.id)
    assert fresh.state == "running"
    assert fresh.epoch > epoch
    slot = await sync_to_async(list)(
        Replica.objects.filter(attempt__job=job, index=1).order_by("incarnation").values_list("incarnation", "state")
    )
    assert slot == [(1, "evicted"), (2, "active")]
    certificate = await eventually(
        "the certificate is written",
        lambda: (c := Incident.objects.get(pk=incident.pk).certificate) and c["state"] != "pending" and c,
        stack=stack,
    )
    verdicts = {check["name"]: check["ok"] for check in certificate["checks"]}
    assert verdicts == {
        "state_hashes_equal": True,
        "sample_ledger_exact": True,
        "loss_matches_reference": None,
        "no_step_lost": True,
        "old_incarnation_fenced": True,
    }, certificate
    assert certificate["state"] == "incomplete", "no reference run is made here"
    assert (certificate["judged"], certificate["of"]) == (4, 5)
    incident = await sync_to_async(Incident.objects.get)(pk=incident.pk)
    names = [phase["name"] for phase in incident.phases]
    protocol = ["fault", "detected", "decided", "view_announced", "all_flushed", "view_installed", "first_commit"]
    slot = ["replica_started", "replica_joined", "caught_up"]
    assert [name for name in names if name in protocol] == protocol
    assert [name for name in names if name in slot] == slot, "its new life comes up beside that"
    assert names[-1] == "full_strength"
    assert len(names) == len(protocol) + len(slot) + 1
    since = [phase["since_fault_s"] for phase in incident.phases]
    assert since[0] == 0.0
    assert since == sorted(since)


async def test_every_command_takes_effect_once_and_every_decision_is_made_once(stack: Stack, world: World) -> None:
    job = await submit()
    await running(job, stack)
    world.kill_replica(0)
    await eventually("resolved", lambda: Incident.objects.filter(job=job, state="resolved").exists(), stack=stack)
    executed = [envelope.command_id for agent in world.agents for envelope in agent.executed]
    assert len(executed) == len(set(executed))
    keys = await sync_to_async(list)(Decision.objects.filter(job=job).values_list("key", flat=True))
    assert len(keys) == len(set(keys))
    starts = await sync_to_async(list)(
        Command.objects.filter(job=job, kind="start_ranks").values_list("state", flat=True)
    )
    assert set(starts) == {"succeeded"}
    held = await sync_to_async(list)(Rank.objects.filter(released_at=None).values_list("device_id", flat=True))
    assert len(held) == len(set(held)) == 6


async def test_without_redis_decisions_are_made_and_orders_are_delivered(
    stack: Stack, world: World, redis_server: RedisServer
) -> None:
    job = await submit()
    await running(job, stack)
    redis_server.process.kill()
    try:
        world.kill_replica(2)
        await eventually(
            "the slot trains again",
            lambda: Replica.objects.filter(attempt__job=job, index=2, incarnation=2, state="active").exists(),
            stack=stack,
        )
    finally:
        redis_server.start()
    executed = [envelope.command_id for agent in world.agents for envelope in agent.executed]
    assert len(executed) == len(set(executed))


async def test_a_web_process_killed_in_mid_recovery_loses_and_doubles_nothing(stack: Stack, world: World) -> None:
    job = await submit()
    await running(job, stack)
    world.kill_replica(1)
    stack.web.kill()
    stack.web.start()
    await eventually("resolved", lambda: Incident.objects.filter(job=job, state="resolved").exists(), stack=stack)
    executed = [envelope.command_id for agent in world.agents for envelope in agent.executed]
    assert len(executed) == len(set(executed))
    exits = await sync_to_async(list)(Signal.objects.filter(job=job, kind="rank_exit").values_list("key", flat=True))
    assert len(exits) == len(set(exits)) == 2
    seqs = await sync_to_async(list)(Event.objects.order_by("seq").values_list("seq", flat=True))
    assert seqs == list(range(1, len(seqs) + 1))


async def test_a_cut_off_node_is_found_by_its_silence_and_settled_when_it_is_back(stack: Stack, world: World) -> None:
    job = await submit()
    await running(job, stack)
    silent = next(agent for agent in world.agents if agent.ranks)
    silent.muted = True
    await eventually(
        "the silence is a finding",
        lambda: Signal.objects.filter(kind="node_silent", node__name=silent.name).exists(),
        stack=stack,
    )
    silent.muted = False
    await eventually(
        "it is refuted",
        lambda: not Signal.objects.filter(kind="node_silent", settled_at=None).exists(),
        stack=stack,
    )
    assert not await sync_to_async(Incident.objects.filter(job=job).exists)()


async def test_with_a_worker_decisions_are_made_by_celery_and_its_canary_is_seen(stack: Stack, world: World) -> None:
    stack.worker.start()
    try:
        await eventually(
            "a task was carried out end to end", lambda: ProcessBeat.objects.filter(role="worker").exists(), stack=stack
        )
        job = await submit()
        await running(job, stack)
        assert "decided" in stack.worker.log.read_text()
    finally:
        stack.worker.stop()


async def test_a_worker_that_hangs_is_noticed_by_its_canary_and_a_recovery_is_made_without_it(
    stack: Stack, world: World
) -> None:
    stack.worker.start()
    try:
        await eventually("a task was carried out", lambda: beats.view("worker").ok, stack=stack)
        job = await submit()
        await running(job, stack)
        stack.worker.pause()
        assert stack.worker.child is not None and stack.worker.child.poll() is None, "its process lives"
        await eventually("no canary comes through", lambda: not beats.view("worker").ok, stack=stack)
        assert (await sync_to_async(beats.view)("worker")).detail.endswith("is silent")
        world.kill_replica(1)
        await eventually("resolved", lambda: Incident.objects.filter(job=job, state="resolved").exists(), stack=stack)
    finally:
        stack.worker.kill()
