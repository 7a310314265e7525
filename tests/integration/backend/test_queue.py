"""Jobs that wait start by priority and age, on real rows; who may not start yet says behind whom it waits."""

from pathlib import Path

import msgspec
import pytest

from controlplane.fleet.models import Node
from controlplane.jobs.models import Attempt, Job, JobPace, Rank
from controlplane.jobs.services import cancel_job, submit_job
from controlplane.policy.queue.place import FRONT
from controlplane.protocol import spec as specs
from controlplane.protocol.frames import RankExited
from controlplane.protocol.spec_lint import lint
from controlplane.protocol.spec_text import parse_yaml
from controlplane.recovery import load_queue, queue_pass
from controlplane.recovery.models import Decision
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.selectors import snapshot_of, waits_for
from controlplane.runtime.clock import after, now
from tests.integration.backend.builders import Fleet, live_ranks, make_fleet, ref_of, run_job
from tests.integration.backend.conftest import job_spec
from tests.integration.backend.test_reconcile import in_threads

pytestmark = pytest.mark.django_db(transaction=True)
EXAMPLES = Path(__file__).parents[3] / "examples"
STEP_S = 2.0
TWO = {"resources": specs.Resources(nodes=2, gpus_per_node=2), "parallelism": specs.Parallelism(tp=1, pp=2)}


def submitted(name: str, *, priority: int = 500, nodes: int = 2, gpus: int = 2, steps: int = 10_000) -> Job:
    """A job of whole nodes, each a replica."""
    spec = job_spec(
        resources=specs.Resources(nodes=nodes, gpus_per_node=gpus),
        parallelism=specs.Parallelism(tp=1, pp=gpus),
        training=specs.Training(steps=steps, global_batch=12, micro_batch=1),
        scheduling=specs.Scheduling(priority=priority),
    )
    named = msgspec.structs.replace(spec, metadata=specs.Metadata(name=name))
    return submit_job(named, owner="ada", actor="ada")


def full(count: int = 2) -> tuple[Fleet, Job]:
    """A fleet of two nodes, or more, two of which a job trains on."""
    fleet = make_fleet(count)
    job = run_job(fleet, **TWO)
    row = JobPace.objects.get(job=job)
    row.pace |= {"recent": [STEP_S] * 3}
    row.save()
    return fleet, job


def end(fleet: Fleet, job: Job) -> None:
    """Cancelled, and its processes are gone."""
    rows = live_ranks(job)
    cancel_job(job.id, reason="enough", actor="ada")
    reconcile_job(job.id)
    fleet.tell_all((row.node.name, RankExited(ref_of(row), 0, None, True)) for row in rows)
    reconcile_job(job.id)


def state(job: Job) -> str:
    return Job.objects.get(pk=job.pk).state


def test_of_two_jobs_on_a_full_fleet_the_urgent_one_starts_first_whoever_is_asked_first() -> None:
    fleet, running = full()
    early, urgent = submitted("early", priority=400), submitted("urgent", priority=900)
    for job in (early, urgent):
        reconcile_job(job.id)
    assert (state(early), state(urgent)) == ("pending", "pending")
    assert waits_for(early) == "Waits in the queue: too few devices are free, and urgent (priority 900) is ahead of it."
    end(fleet, running)
    reconcile_job(early.id)
    assert state(early) == "pending" and "what is free is kept" not in waits_for(early)
    assert Rank.objects.filter(released_at=None).count() == 0
    reconcile_job(urgent.id)
    reconcile_job(early.id)
    assert (state(early), state(urgent)) == ("pending", "starting")
    assert list(Attempt.objects.filter(job__in=[early, urgent]).values_list("job__name", flat=True)) == ["urgent"]


def test_however_many_passes_come_at_once_the_urgent_job_gets_the_devices() -> None:
    make_fleet(2)
    jobs = [submitted("early", priority=400), submitted("urgent", priority=900), submitted("last", priority=100)]
    assert in_threads(*[lambda job=job: reconcile_job(job.id) for job in jobs]) == []
    for job in jobs:
        reconcile_job(job.id)
    assert [state(job) for job in jobs] == ["pending", "starting", "pending"]


def test_the_example_of_a_high_priority_starts_before_one_that_waits_longer() -> None:
    fleet, running = full(2)
    earlier = submitted("earlier", nodes=2)
    linted = lint(parse_yaml((EXAMPLES / "high-priority.yaml").read_bytes()))
    assert linted.spec is not None, linted.faults
    urgent = submit_job(linted.spec, owner="ada", actor="ada")
    end(fleet, running)
    reconcile_job(earlier.id)
    reconcile_job(urgent.id)
    assert (state(earlier), state(urgent)) == ("pending", "starting")


def test_of_equal_priority_the_one_that_waits_longer_is_first() -> None:
    fleet, running = full()
    first, second = submitted("first"), submitted("second")
    end(fleet, running)
    reconcile_job(second.id)
    reconcile_job(first.id)
    assert (state(first), state(second)) == ("starting", "pending")


def test_a_small_job_passes_the_head_only_where_it_is_expected_to_start_no_later() -> None:
    _, running = full(3)
    head, small = submitted("head", nodes=3, priority=900), submitted("small", nodes=1)
    reconcile_job(small.id)
    assert state(small) == "pending", "the head needs all three nodes when the running job ends"
    Job.objects.filter(pk=head.pk).update(state="cancelled")
    other = submitted("other", nodes=2, priority=900)
    reconcile_job(other.id)
    reconcile_job(small.id)
    assert (state(other), state(small)) == ("pending", "starting")
    assert Job.objects.get(pk=running.pk).state == "running"


def test_a_cordoned_node_is_no_room_for_the_queue() -> None:
    make_fleet(2)
    Node.objects.filter(name="n2").update(state="cordoned")
    large, small = submitted("large", nodes=2, priority=900), submitted("small", nodes=1)
    reconcile_job(large.id)
    reconcile_job(small.id)
    assert (state(large), state(small)) == ("pending", "starting"), (
        "nothing that runs could make room for the large one"
    )


def test_the_decision_to_wait_keeps_the_place_in_the_queue_for_its_replay() -> None:
    full()
    submitted("urgent", priority=900)
    late = submitted("late")
    reconcile_job(late.id)
    row = Decision.objects.get(job=late)
    assert row.reason_code == "queued" and row.evidence["place"] == 2
    kept = snapshot_of(row).queue
    assert kept is not None and (kept.place, kept.waiting, kept.may_start) == (2, 2, False)


def test_a_job_alone_in_the_queue_asks_nothing_of_it() -> None:
    full()
    only = submitted("only")
    assert load_queue.place_of(Job.objects.get(pk=only.pk)) is None
    reconcile_job(only.id)
    assert waits_for(only).startswith("Waits for devices: ")


def test_who_leaves_the_queue_wakes_those_that_are_first_then() -> None:
    make_fleet(2)
    first, second = submitted("first"), submitted("second")
    for job in (second, first):
        Job.objects.filter(pk=job.pk).update(due_at=None)
    reconcile_job(first.id, sure=True)
    assert state(first) == "starting"
    due = Job.objects.get(pk=second.pk).due_at
    assert due is not None and due <= now()


@pytest.mark.parametrize("limited", [False, True], ids=["asleep", "time limit"])
def test_behind_the_front_a_job_is_woken_by_the_plan_when_it_may_start(
    monkeypatch: pytest.MonkeyPatch, limited: bool
) -> None:
    monkeypatch.setattr(queue_pass, "PLAN_EVERY_S", 0.0)
    make_fleet(1)
    waiting = [submitted(f"large{number}", nodes=2, priority=900) for number in range(FRONT)]
    small = submitted("small", nodes=1)
    for job in waiting:
        reconcile_job(job.id)
    Job.objects.filter(pk=small.pk).update(due_at=after(3600.0) if limited else None)
    assert queue_pass.call_waiting() == 1
    reconcile_job(small.id)
    assert state(small) == "starting", "no node could ever hold those at the front"


def test_the_first_in_line_is_woken_if_its_own_moment_was_lost() -> None:
    full()
    first, second = submitted("a"), submitted("b")
    Job.objects.filter(pk__in=[first.pk, second.pk]).update(due_at=None)
    assert [queue_pass.call_waiting(), queue_pass.call_waiting()] == [1, 0]
    assert Job.objects.get(pk=first.pk).due_at is not None


def test_spares_of_a_job_that_waits_again_are_no_room_that_is_expected() -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    assert {h.id: sum(n for _, n in h.devices) for h in load_queue.load_fleet().holders} == {job.id: 8}
    Job.objects.filter(pk=job.pk).update(state="pending")
    (holder,) = load_queue.load_fleet().holders
    assert (holder.leaves, sum(number for _, number in holder.devices)) == (True, 6)
    assert sum(sum(node.free.values()) for node in load_queue.load_fleet().nodes) == 0


def test_the_queue_counts_what_jobs_hold_and_when_they_are_expected_to_end() -> None:
    _, running = full(3)
    (holder,) = load_queue.load_fleet().holders
    assert (holder.id, sum(number for _, number in holder.devices), holder.leaves) == (running.id, 4, False)
    left_s = STEP_S * (running.spec["spec"]["training"]["steps"] - running.committed_step)
    assert holder.ends_s is not None and abs(holder.ends_s - now().timestamp() - left_s) < 60.0
    nodes = {node.id: node for node in load_queue.load_fleet().nodes}
    assert {node_id: sum(node.free.values()) for node_id, node in nodes.items()} == {
        "node_1": 0, "node_2": 0, "node_3": 2,
    }  # fmt: skip
    assert all(sum(node.usable.values()) == 2 for node in nodes.values())


def test_a_node_in_part_in_use_lends_what_is_left_of_it() -> None:
    make_fleet(1)
    reconcile_job(submitted("half", nodes=1, gpus=1).id)
    (node,) = load_queue.load_fleet().nodes
    assert (sum(node.free.values()), sum(node.usable.values())) == (1, 2)


def test_a_job_whose_spec_nobody_can_read_is_in_nobodys_way() -> None:
    full()
    spoilt, good = submitted("spoilt", priority=900), submitted("good")
    Job.objects.filter(pk=spoilt.pk).update(spec={"none": 1})
    reconcile_job(good.id)
    snapshot = snapshot_of(Decision.objects.filter(job=good).latest("id"))
    assert [job.id for job in load_queue.waiting()] == [good.id]
    assert snapshot.queue is not None and (snapshot.queue.place, snapshot.queue.waiting) == (1, 1)
