"""V19: a project's policy document as a lever: against another project, against the fleet, and as a burden."""

from typing import Any

import pytest

from controlplane.access.project_models import Role
from controlplane.policies import selectors
from controlplane.policies.models import PolicyVersion
from controlplane.policies.whose import Whose
from controlplane.policy.document import DEFAULT
from controlplane.policy.fields import FIELDS, Safer
from tests.integration.api.conftest import Caller
from tests.integration.api.tenants import OTHER, SECRET, Tenants, account, caller_of, tenants

pytestmark = pytest.mark.django_db
PUT, BACK = "/policy:put", "/policy:rollback"
SAID = "plum-coloured tapir"


def body(text: str, parent: int = 0, **more: Any) -> dict[str, Any]:
    return {"text": text, "parent": parent, "reason": "r"} | more


def admins() -> tuple[Tenants, Caller, Caller]:
    """The world, an administrator of the private project, and one of the other."""
    return (
        tenants(),
        caller_of(account("amy", hush_hush=Role.ADMIN)),
        caller_of(account("eve", fleet="operate", daylight=Role.ADMIN)),
    )


def test_another_projects_admin_reads_changes_and_learns_nothing(db: None) -> None:
    _, amy, eve = admins()
    assert amy.post(PUT, body("lease_s: 77", project=SECRET) | {"reason": SAID}).status_code == 201
    for answer in (
        eve.get(f"/policy?project={SECRET}"), eve.get(f"/policy/versions?project={SECRET}"),
        eve.get(f"/policy/diff?before=0&after=1&project={SECRET}"), eve.post(PUT, body("{}", 1, project=SECRET)),
        eve.post(BACK, {"to": 0, "parent": 1, "reason": "r", "project": SECRET}),
        eve.post("/policy:replay", {"since_s": 60, "project": SECRET}),
    ):  # fmt: skip
        assert answer.status_code == 404 and SAID not in answer.content.decode()
    for path in ("/events", "/policy", "/policy/versions", "/projects", "/overview"):
        text = eve.get(path).content.decode()
        assert SECRET not in text and SAID not in text, path
    assert selectors.of_fleet() == DEFAULT and PolicyVersion.objects.count() == 1


def test_nothing_that_a_project_writes_widens_any_field(db: None) -> None:
    world, amy, _ = admins()
    before = selectors.of_job(world.job.pk)
    for field in FIELDS:
        bound = field.least if field.safer is Safer.HIGHER else field.most
        value = max(int(bound), 1) if field.whole else bound
        if value == getattr(before, field.name) and field.narrows:
            continue
        answer = amy.post(PUT, body(f"{field.name}: {value}", project=SECRET))
        assert answer.status_code == 422, field.name
    for text in ("xid_overrides: {63: ignore}", "lease_s: .nan", "lease_s: -.inf", "lease_s: 1.0e400", "- 1", "a: *a"):
        assert amy.post(PUT, body(text, project=SECRET)).status_code == 422, text
    assert selectors.of_job(world.job.pk) == before and not PolicyVersion.objects.exists()


def test_a_projects_old_wide_version_that_comes_back_is_held_by_what_is_above_it_now(db: None) -> None:
    world, amy, _ = admins()
    root = caller_of(account("root", fleet="admin"))
    amy.post(PUT, body("lease_s: 12\nmax_acts: 19", project=SECRET))
    amy.post(PUT, body("lease_s: 60", 1, project=SECRET))
    assert root.post(PUT, body("lease_s: 40\nmax_acts: 5")).status_code == 201
    back = amy.post(BACK, {"to": 1, "parent": 2, "reason": "r", "project": SECRET})
    assert back.status_code == 422 and "may only narrow" in back.json()["errors"][0]["message"]
    amy.post(BACK, {"to": 0, "parent": 2, "reason": "r", "project": SECRET})
    config = selectors.of_job(world.job.pk)
    assert (config.lease_s, config.max_acts) == (40.0, 5)


def test_a_job_is_not_narrowed_by_a_project_that_is_not_its_own(db: None) -> None:
    world, _, eve = admins()
    assert eve.post(PUT, body("rule_modes: {replica_failure: observe}", project=OTHER)).status_code == 201
    assert selectors.of_job(world.job.pk) == DEFAULT
    assert eve.post(PUT, body("lease_s: 20", project=OTHER, job_id=world.job.id)).status_code == 422
    assert selectors.newest(world.job.pk) is None


def test_a_project_holds_no_roll_back_of_the_fleet_up_and_its_admin_changes_nothing_above(db: None) -> None:
    world, amy, _ = admins()
    root = caller_of(account("root", fleet="admin"))
    root.post(PUT, body("lease_s: 600"))
    assert amy.post(PUT, body("witness_s: 599", project=SECRET)).status_code == 201
    held = root.post(PUT, body("lease_s: 20", 1))
    assert held.status_code == 422 and SECRET in held.json()["errors"][0]["message"]
    assert root.post(BACK, {"to": 0, "parent": 1, "reason": "it burns"}).status_code == 201
    assert selectors.of_fleet() == DEFAULT
    assert root.post(BACK, {"to": 0, "parent": 1, "reason": "theirs too", "project": SECRET}).status_code == 201
    assert amy.post(PUT, body("lease_s: 20")).status_code == 403
    assert selectors.of_job(world.job.pk) == DEFAULT


def test_a_huge_document_is_refused_before_it_is_read_and_a_long_one_whole(db: None) -> None:
    admins()
    amy = caller_of(account("ann", hush_hush=Role.ADMIN))
    huge = amy.post(PUT, body("#" * 100_001, project=SECRET))
    assert huge.status_code in (413, 422)
    many = "".join(f"x{number}: 1\n" for number in range(5000))
    answer = amy.post(PUT, body(many, project=SECRET))
    assert answer.status_code == 422 and len(answer.content) < 2_000_000
    deep = "rule_modes: " + "{a: " * 2000 + "1" + "}" * 2000
    assert amy.post(PUT, body(deep, project=SECRET)).status_code == 422
    assert amy.post(PUT, body("lease_s: 20", project="x" * 64)).status_code == 422
    assert Whose(project=None) == Whose() and not PolicyVersion.objects.exists()
