"""holdfast policy ..."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from controlplane.access.services import create_api_token
from controlplane.cli.exits import Exit
from controlplane.jobs.models import Job
from controlplane.policies import selectors, shadows
from controlplane.policy.document import DEFAULT
from controlplane.recovery import shadowing
from controlplane.recovery.models import Decision
from tests.integration.backend.builders import job_that_lost_a_rank
from tests.integration.backend.recorded import keep, stills
from tests.integration.cli.conftest import World

Run = Callable[..., Any]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def admin(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    token = create_api_token(User.objects.get(username="ada"), name="root", scope="admin").secret
    monkeypatch.setenv("HOLDFAST_TOKEN", token)
    return world


def written(text: str) -> str:
    Path("policy.yaml").write_text(text)
    return "policy.yaml"


def test_a_document_is_set_shown_compared_and_brought_back(admin: World, holdfast: Run) -> None:
    assert "Every field has its default" in holdfast("policy", "show").out
    done = holdfast("policy", "set", written("max_acts: 9\nrule_modes: {straggler: observe}\n"), "-r", "at night")
    assert done.code == Exit.OK and "max_acts: 20 -> 9" in done.out
    shown = holdfast("policy", "show").out
    assert "max_acts" in shown and "rule_modes.straggler: observe" in shown and "lease_s" not in shown
    assert "lease_s" in holdfast("policy", "show", "--all").out
    assert "max_acts: 20 -> 9" in holdfast("policy", "diff", "0").out
    (row,) = holdfast("policy", "versions", "-o", "json").json["items"]
    assert (row["number"], row["reason"]) == (1, "at night")
    back = holdfast("policy", "rollback", "0", "-r", "as it was")
    assert back.code == Exit.OK and "max_acts: 9 -> 20" in back.out
    assert selectors.of_fleet() == DEFAULT


def test_a_jobs_document_narrows_that_job_alone(admin: World, holdfast: Run) -> None:
    assert holdfast("policy", "set", written("lease_s: 5\n"), "--job", "tiny").code == Exit.USAGE
    assert holdfast("policy", "set", written("lease_s: 50\n"), "--job", "tiny").code == Exit.OK
    assert "of tiny" in holdfast("policy", "show", "--job", "tiny").out
    assert selectors.of_job(admin.job_id).lease_s == 50.0 and selectors.of_fleet() == DEFAULT


def test_a_projects_document_narrows_its_jobs(admin: World, holdfast: Run) -> None:
    assert holdfast("policy", "set", written("lease_s: 5\n"), "--project", "default").code == Exit.USAGE
    done = holdfast("policy", "set", written("lease_s: 50\n"), "--project", "default", "-r", "slow steps")
    assert done.code == Exit.OK and "lease_s: 10.0 -> 50" in done.out
    assert "of the project default" in holdfast("policy", "show", "--project", "default").out
    assert "project" in holdfast("policy", "show", "--job", "tiny").out
    (row,) = holdfast("policy", "versions", "--project", "default", "-o", "json").json["items"]
    assert row["reason"] == "slow steps"
    assert holdfast("policy", "show", "--project", "default", "--job", "tiny").code == Exit.USAGE
    assert "lease_s: 50.0 -> 10.0" in holdfast("policy", "rollback", "0", "--project", "default").out
    assert (
        "lease_s: 10.0 -> 60"
        in holdfast("policy", "dry-run", written("lease_s: 60\n"), "--project", "default", "--seeds", "0").out
    )
    assert selectors.of_job(admin.job_id) == DEFAULT


def test_a_faulty_document_changes_nothing_and_each_fault_has_its_fix(admin: World, holdfast: Run) -> None:
    refused = holdfast("policy", "set", written("max_acts: 0\nleese_s: 3\n"))
    assert refused.code == Exit.USAGE
    assert "policy.yaml, line 1: /max_acts: a cap of zero" in refused.err
    assert "policy.yaml, line 2: /leese_s: no such field" in refused.err
    assert "policy.yaml, line 2: not YAML" in holdfast("policy", "set", written("max_acts: 9\n  lease_s: 3\n")).err
    assert holdfast("policy", "set", "absent.yaml").code == Exit.USAGE
    assert selectors.of_fleet() == DEFAULT


def test_who_read_an_older_version_is_refused(admin: World, holdfast: Run) -> None:
    holdfast("policy", "set", written("max_acts: 9\n"))
    late = holdfast("policy", "set", written("max_acts: 8\n"), "--parent", "0")
    assert late.code == Exit.CONFLICT and "version 1 is the newest" in late.err


def test_an_operator_reads_policies_and_changes_none(world: World, holdfast: Run) -> None:
    assert holdfast("policy", "show").code == Exit.OK
    assert holdfast("policy", "set", written("max_acts: 9\n")).code == Exit.AUTH


@pytest.fixture
def lost(world: World, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A second job, that lost a replica by decisions that were really made."""
    monkeypatch.setattr("controlplane.recovery.health_gate.is_blind", lambda: False)
    return job_that_lost_a_rank()[1]


def test_a_dry_run_says_what_would_have_been_held_and_its_price(world: World, holdfast: Run, lost: Job) -> None:
    done = holdfast("policy", "dry-run", written("rule_modes: {replica_failure: observe}\n"), "--since", "1h")
    assert done.code == Exit.OK, done.err
    assert "rule_modes.replica_failure: - -> observe" in done.out
    assert "It would have carried out fewer: evict_and_replace 1." in done.out
    assert "GPU-seconds less, of 1 that" in done.out
    assert selectors.of_fleet() == DEFAULT
    rows = holdfast("decision", "replay", "--policy", "policy.yaml", "--since", "1h", "-o", "json").json
    assert (rows["fewer"], rows["more"]) == ({"evict_and_replace": 1}, {})


def test_what_differs_is_continued_in_the_simulator_from_its_recorded_state(world: World, holdfast: Run) -> None:
    Decision.objects.all().delete()
    keep(stills(0), name="sim")
    done = holdfast("policy", "dry-run", written("lease_s: 3\n"), "--since", "1h", "--seeds", "1")
    assert done.code == Exit.OK, done.err
    assert "Continued in the simulator from 3 recorded states" in done.out
    assert "GPU-seconds over 1 seed." in done.out and "Continuing 1 of 6" in done.err
    none = holdfast("decision", "replay", "--policy", "policy.yaml", "--since", "1h", "--seeds", "0", "-o", "json").json
    assert none["continued"]["not_continued"] == {"it was not asked for": 6}
    assert holdfast("policy", "dry-run", "policy.yaml", "--within", "soon").code == Exit.USAGE
    assert holdfast("policy", "dry-run", "policy.yaml", "--seeds", "65").code == Exit.USAGE


def test_a_shadow_is_started_shown_refused_promoted_and_stopped(
    admin: World, holdfast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert holdfast("policy", "shadow", "show").code == Exit.NOT_FOUND
    refused = holdfast("policy", "shadow", "start", written("leese_s: 3\n"))
    assert refused.code == Exit.USAGE and "policy.yaml, line 1: /leese_s: no such field" in refused.err
    started = holdfast(
        "policy", "shadow", "start", written("stop_grace_s: 11\n"), "--min-decisions", "1", "--min-days", "0"
    )
    assert started.code == Exit.OK and "acts on nothing" in started.out
    assert "the bar asks for 1" in holdfast("policy", "shadow", "show").out
    early = holdfast("policy", "shadow", "promote")
    assert early.code == Exit.CONFLICT and "below the bar" in early.err
    keep(stills(0), name="sim")
    run = shadows.running()
    assert run is not None
    run.after = ""
    shadowing.compare(run)
    shown = holdfast("policy", "shadow", "show").out
    assert "leave_out" in shown and "It may be promoted" in shown
    assert holdfast("policy", "shadow", "promote", "-r", "it is better").code == Exit.OK
    assert selectors.of_fleet().stop_grace_s == 11.0
    assert "it watches version 1" in holdfast("policy", "shadow", "show").out
    assert holdfast("policy", "shadow", "show", "-o", "json").json["role"] == "watch"
    assert holdfast("policy", "shadow", "stop", "-r", "enough").code == Exit.OK
    assert "stopped" in holdfast("policy", "shadow", "show").out


def test_a_replay_exits_by_whether_all_came_out_equal(world: World, holdfast: Run, lost: Job) -> None:
    Decision.objects.exclude(job=lost).delete()
    equal = holdfast("decision", "replay", "--since", "1h")
    assert equal.code == Exit.OK and "0 differ" in equal.out
    lost.decisions.filter(rule="replica_failure").update(sentence="Other words.")
    other = holdfast("decision", "replay", "--since", "1h")
    assert other.code == Exit.NEGATIVE and "not the same: sentence" in other.out
    assert holdfast("decision", "replay", "--since", "soon").code == Exit.USAGE


def test_the_policy_of_a_decision_is_shown_by_its_version(admin: World, holdfast: Run) -> None:
    holdfast("policy", "set", written("max_acts: 9\n"))
    version = holdfast("policy", "show", "-o", "json").json["version"]
    shown = holdfast("policy", "show", "--recorded", version).out
    assert "document 1" in shown and "max_acts: 20 -> 9" in shown
