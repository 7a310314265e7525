"""`holdfast job explain` of a job that waits."""

from typing import Any

from controlplane.cli.exits import Exit
from controlplane.jobs.services import submit_job
from controlplane.protocol.spec_lint import lint
from controlplane.recovery.reconcile import reconcile_job
from tests.integration.api.conftest import SPEC
from tests.integration.cli.conftest import World


def submitted(name: str, priority: int) -> str:
    """A job that needs the whole fleet."""
    resources = {"nodes": 2, "gpus_per_node": 2}
    spec = SPEC["spec"] | {"resources": resources, "scheduling": {"priority": priority}}
    linted = lint(SPEC | {"metadata": {"name": name}, "spec": spec})
    assert linted.spec is not None, linted.faults
    job = submit_job(linted.spec, owner="ada", actor="user:ada")
    reconcile_job(job.id)
    return job.id


def test_a_waiting_job_is_explained_to_people_and_programs(world: World, holdfast: Any) -> None:
    urgent = submitted("urgent", 900)
    submitted("late", 400)
    shown = holdfast("job", "explain", "late")
    assert shown.code == Exit.OK
    assert "Place 2 of 2 in the queue: too few devices are free, and urgent (priority 900) is ahead of it" in shown.out
    assert "2 nodes with 2 free devices each" in shown.out and "not known" in shown.out
    answer = holdfast("job", "explain", "late", "-o", "json").json
    assert (answer["queue"]["place"], answer["queue"]["behind"]) == (2, urgent)
    shown = holdfast("job", "explain", "urgent").out
    assert "outranks       tiny (priority 500)" in shown
    assert "no preemption  all of lower priority are left alone" in shown
    assert "left alone     tiny (priority 500) began less than 300 s ago, until 20" in shown


def test_of_a_job_that_runs_nothing_is_said_of_the_queue(world: World, holdfast: Any) -> None:
    assert "queue" not in holdfast("job", "explain", "tiny", "-o", "json").json
    assert "in the queue" not in holdfast("job", "explain", "tiny").out
