"""A job that brings its own program: one world over two nodes, trained as one replica."""

import pytest

from controlplane.jobs.models import Job
from controlplane.protocol import frames
from controlplane.protocol import spec as specs
from controlplane.protocol.commands import StartRanks
from controlplane.protocol.rank import StepReport
from controlplane.protocol.states import UNFIT, JobState
from controlplane.recovery.reconcile import reconcile_job
from tests.integration.backend.builders import bodies, live_ranks, make_fleet, make_job, ref_of, run_job

pytestmark = pytest.mark.django_db(transaction=True)


def own_program(nodes: int, pp: int) -> dict[str, object]:
    return {
        "entrypoint": ["python", "train.py"],
        "resources": specs.Resources(nodes=nodes, gpus_per_node=2, min_replicas=1),
        "parallelism": specs.Parallelism(pp=pp),
    }


def test_ranks_on_two_nodes_are_told_where_rank_0_is_and_train_as_one_replica() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=0, **own_program(nodes=2, pp=4))
    launches = {command.node.name: body.launch for command, body in bodies(job, "start_ranks")
                if isinstance(body, StartRanks)}  # fmt: skip
    first = next(name for name, launch in launches.items() if 0 in {place.rank for place in launch.ranks})
    assert len(launches) == 2
    assert {launch.master_host for launch in launches.values()} == {first}
    for row in live_ranks(job):
        # What hooks report: steps of the job's only view, no micro-batches.
        fleet.tell(row.node.name, frames.RankSaid(ref_of(row), StepReport(0, job.epoch, 0.1, 256, (), 5.0)))
    reconcile_job(job.id)
    fresh = Job.objects.get(pk=job.id)
    assert (fresh.state, fresh.committed_step) == (JobState.RUNNING, 1)


def test_ranks_on_one_node_need_no_name() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=0, **own_program(nodes=1, pp=2))
    assert [body.launch.master_host for _, body in bodies(job, "start_ranks") if isinstance(body, StartRanks)] == [""]
    assert {body.launch.user for _, body in bodies(job, "start_ranks")} == {job.owner}


def test_a_job_whose_program_is_not_on_the_node_says_where_it_was_looked_for_and_what_mends_it() -> None:
    fleet = make_fleet()
    job = make_job(**own_program(nodes=1, pp=2))
    reconcile_job(job.id)
    ((order, _),) = bodies(job, "start_ranks")
    why = "program: python is not there (PATH /usr/bin:/bin): give its absolute path, or set PATH in the job's env"
    refusal = f"the node is not fit: {why}"
    fleet.tell(order.node.name, frames.CommandAnswer(order.id, "failed", refusal, UNFIT))
    reconcile_job(job.id)
    waits = Job.objects.get(pk=job.id)
    assert waits.state == JobState.PENDING
    assert f"its start on {order.node.name} failed: {refusal})" in waits.state_reason, "what page and CLI show"
    assert waits.attempts.get().end_code == UNFIT, "which costs no restart"
