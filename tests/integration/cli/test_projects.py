"""holdfast project ..., and jobs by their project."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.contrib.auth.models import User

from controlplane.access.models import AuditEntry
from controlplane.access.project_models import Project
from controlplane.access.services import create_api_token
from controlplane.cli.exits import Exit
from controlplane.jobs.models import Job
from tests.integration.api.conftest import SPEC
from tests.integration.cli.conftest import World

Run = Callable[..., Any]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def admin(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    token = create_api_token(User.objects.get(username="ada"), name="root", scope="admin").secret
    monkeypatch.setenv("HOLDFAST_TOKEN", token)
    return world


def test_a_project_is_made_changed_listed_and_shown_with_its_members(admin: World, holdfast: Run) -> None:
    User.objects.create_user("bob", password="correct horse battery")
    made = holdfast("project", "create", "vision", "--quota", "16", "--lend", "8", "--reason", "a new team")
    assert made.code == Exit.OK and "private" in made.out and "set-member vision" in made.err
    assert holdfast("project", "set", "vision", "--borrow", "0", "--max-priority", "700", "-r", "r").code == Exit.OK
    row = Project.objects.get(name="vision")
    assert (row.quota_gpus, row.lend_limit_gpus, row.borrow_limit_gpus, row.max_priority) == (16, 8, 0, 700)
    assert holdfast("project", "set", "vision", "--quota", "none", "--lend", "none").code == Exit.OK
    assert Project.objects.get(name="vision").quota_gpus is None
    assert "bob is operator" in holdfast("project", "set-member", "vision", "bob", "operator").out
    shown = holdfast("project", "show", "vision").out
    assert "bob" in shown and "operator" in shown and "700" in shown
    listed = holdfast("project", "ls", "-o", "json").json["items"]
    assert [each["name"] for each in listed] == ["default", "vision"]
    # The world's job holds two devices on each of two nodes.
    assert (listed[0]["in_use_gpus"], listed[0]["live_jobs"], listed[1]["in_use_gpus"]) == (4, 1, 0)
    assert "no member of the project vision any more" in holdfast("project", "remove-member", "vision", "bob").out
    assert {"project.create", "project.set", "project.set_member", "project.remove_member"} <= set(
        AuditEntry.objects.values_list("action", flat=True)
    )


def test_what_is_no_number_of_gpus_no_role_and_no_project_is_refused_with_the_fix(admin: World, holdfast: Run) -> None:
    refused = holdfast("project", "create", "vision", "--quota", "many")
    assert refused.code == Exit.USAGE and "--quota: 'many' is no number of GPUs" in refused.err
    assert holdfast("project", "set", "default").code == Exit.USAGE
    assert holdfast("project", "set-member", "default", "ada", "king").code == Exit.USAGE
    assert holdfast("project", "set-member", "default", "nobody", "viewer").code == Exit.NOT_FOUND
    assert holdfast("project", "show", "no-such-one").code == Exit.NOT_FOUND
    assert holdfast("project", "create", "default").code == Exit.CONFLICT


def test_a_job_is_submitted_into_a_project_and_found_by_it(admin: World, holdfast: Run) -> None:
    Project.objects.create(name="vision", quota_gpus=2)
    Path("job.json").write_bytes(msgspec.json.encode(SPEC))
    assert holdfast("job", "submit", "job.json", "--project", "vision").code == Exit.OK
    assert Job.objects.get(project="vision").name == "tiny"
    (row,) = holdfast("job", "ls", "--project", "vision", "-o", "json").json["items"]
    assert (row["project"], row["name"]) == ("vision", "tiny")
    assert len(holdfast("job", "ls", "--project", "default", "-o", "json").json["items"]) == 1
    waits = next(each for each in holdfast("project", "ls", "-o", "json").json["items"] if each["name"] == "vision")
    assert (waits["waiting_gpus"], waits["waiting_jobs"], waits["borrowed_gpus"]) == (4, 1, 0)
    unknown = holdfast("job", "submit", "job.json", "--project", "no-such-one")
    assert unknown.code == Exit.USAGE and "no project 'no-such-one'" in unknown.err


def test_a_token_of_one_project_is_made_and_listed(admin: World, holdfast: Run) -> None:
    assert holdfast("token", "create", "ci", "--scope", "submit", "--project", "default").code == Exit.OK
    rows = holdfast("token", "ls", "-o", "json").json["items"]
    assert {"default"} <= {row["project"] for row in rows}
