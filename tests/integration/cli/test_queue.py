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


def test_the_queue_is_shown_in_line(world: World, holdfast: Any) -> None:
    late = submitted("late", 400)
    urgent = submitted("urgent", 900)
    shown = holdfast("queue").out
    first, second = (line for line in shown.splitlines() if "Place" in line)
    assert (
        first.split()[:3] == ["1", "urgent", "900"] and "Place 1 of 2 in the queue: it is the first to start" in first
    )
    assert second.split()[:3] == ["2", "late", "400"] and "urgent (priority 900) is ahead of it" in second
    assert holdfast("queue", "-o", "name").out.split() == [urgent, late]
    assert [row["place"] for row in holdfast("queue", "--limit", "1", "-o", "json").json["items"]] == [1]


def test_the_capacity_is_shown_by_type_and_says_who_holds_devices_for_how_long(world: World, holdfast: Any) -> None:
    submitted("late", 400)
    answer = holdfast("capacity", "-o", "json").json
    counts = answer["counts"]
    row = next(line for line in holdfast("capacity").out.splitlines() if line.startswith("Toy")).split()
    names = ("nodes", "devices", "in_use", "leaving", "free", "reserved", "spare", "draining", "cordoned", "down")
    assert row[-10:] == [str(counts[name]) for name in names]
    shown = holdfast("capacity").out
    assert "Waiting jobs: 1 (holdfast queue)." in shown
    assert "Of 1 jobs that have devices nobody knows when they end." in shown
