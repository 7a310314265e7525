"""Who may do what in a project: each operation by each role, by members of another project and by nobody."""

from typing import Any

import pytest

from controlplane.access.project_models import Project, Role, Visibility
from tests.integration.api.conftest import Caller
from tests.integration.api.matrix import ABOUT_JOBS, BY_NAME, OF_PROJECTS, OF_THE_FLEET, OPERATIONS, policies_by_project
from tests.integration.api.tenants import LEVELS, OTHER, SECRET, Tenants, account, caller_of, spec, tenants

pytestmark = pytest.mark.django_db
ORDER = ("read", "submit", "operate", "admin")
ROWS = {name: row for name, row in OF_PROJECTS.items() if name not in OF_THE_FLEET}
ROWS |= {f"{name} BY NAME": row for name, row in BY_NAME.items()}
JUDGED = sorted(ROWS)


def ask(caller: Caller, operation: str, world: Tenants) -> int:
    """The status of one operation on what the world has; what it changed is undone."""
    row, (method, path, *_) = ROWS[operation], operation.split(" ")
    where = (path + row.query if "{name}" in row.query else path).format(**world.ids)
    body = {key: value.replace("{name}", SECRET) if key == "project" else value for key, value in row.body.items()}
    with caller.undone():
        answer = caller.get(where) if method == "GET" else caller.post(where, body)
    return int(answer.status_code)


def answers(caller: Caller, world: Tenants) -> dict[str, int]:
    """The status of each operation of the matrix."""
    return {operation: ask(caller, operation, world) for operation in JUDGED}


def refused(found: dict[str, int]) -> dict[str, int]:
    return {operation: status for operation, status in found.items() if status in (401, 403, 404)}


def beyond(scope: str) -> dict[str, int]:
    """403 for each operation that needs more."""
    return {name: 403 for name in JUDGED if ORDER.index(scope) < ORDER.index(ROWS[name].needed)}


def test_every_operation_on_a_thing_of_a_job_or_on_a_project_is_in_the_matrix() -> None:
    of_jobs = {name for name in OPERATIONS if any(part in name for part in ABOUT_JOBS)}
    assert of_jobs <= set(JUDGED)
    assert len(JUDGED) > 30
    assert policies_by_project() == set(BY_NAME), "and each on the policy of a project"


@pytest.mark.parametrize("role", LEVELS)
def test_a_member_may_what_the_role_includes_and_no_more(db: None, role: Role) -> None:
    world = tenants()
    assert refused(answers(caller_of(account("mia", hush_hush=role)), world)) == beyond(LEVELS[role])


def test_who_is_no_member_of_a_private_project_finds_nothing_whatever_else_he_is(db: None) -> None:
    world = tenants()
    outside = {
        "admin of another project": account("eve", daylight=Role.ADMIN),
        "operator of the fleet": account("bob", fleet="operate", daylight=Role.ADMIN),
    }
    for who, user in outside.items():
        assert answers(caller_of(user), world) == dict.fromkeys(JUDGED, 404), who
    nobody = {name: 404 if ROWS[name].needed == "read" else 403 for name in JUDGED}
    assert answers(caller_of(account("zoe")), world) == nobody
    assert answers(Caller(), world) == dict.fromkeys(JUDGED, 401)
    assert refused(answers(caller_of(account("root", fleet="admin")), world)) == {}


def test_a_visible_project_is_read_by_all_and_changed_by_members(db: None) -> None:
    world = tenants(Visibility.VISIBLE)
    for who in (account("eve", daylight=Role.ADMIN), account("bob", fleet="operate")):
        found = answers(caller_of(who), world)
        assert {name: 403 for name, status in found.items() if status == 403} == beyond("read")


@pytest.mark.parametrize("fleet", ORDER)
def test_in_an_open_project_the_scope_of_the_account_counts(db: None, fleet: str) -> None:
    world = tenants(Visibility.OPEN)
    found = answers(caller_of(account("fay", fleet=fleet)), world)
    assert {name: 403 for name, status in found.items() if status == 403} == beyond(fleet)


def test_a_token_of_one_project_is_good_in_no_other(db: None) -> None:
    world = tenants()
    both = account("amy", fleet="admin", hush_hush=Role.ADMIN, daylight=Role.ADMIN)
    assert refused(answers(caller_of(both, project=SECRET), world)) == {}
    assert answers(caller_of(both, project=OTHER), world) == dict.fromkeys(JUDGED, 404)
    bound = answers(caller_of(both, "read", project=SECRET), world)
    assert {name: 403 for name, status in bound.items() if status == 403} == beyond("read")


def submit(caller: Caller, project: str, **scheduling: Any) -> Any:
    return caller.post("/jobs", spec("mine", project, **scheduling))


def test_a_job_is_submitted_by_members_who_may_and_to_no_project_that_is_not_seen(db: None) -> None:
    tenants()
    assert submit(caller_of(account("sub", hush_hush=Role.SUBMITTER)), SECRET).status_code == 201
    assert submit(caller_of(account("view", hush_hush=Role.VIEWER, daylight=Role.ADMIN)), SECRET).status_code == 403
    outsider = caller_of(account("eve", fleet="operate", daylight=Role.ADMIN))
    hidden, unknown = submit(outsider, SECRET), submit(outsider, "no-such-one")
    assert hidden.status_code == unknown.status_code == 422
    assert hidden.json()["detail"].replace(SECRET, "X") == unknown.json()["detail"].replace("no-such-one", "X")
    assert submit(outsider, OTHER).status_code == 201
    assert submit(outsider, "default").status_code == 201


def test_a_priority_above_the_maximum_of_the_project_is_refused_with_the_reason(db: None) -> None:
    tenants()
    Project.objects.filter(name=SECRET).update(max_priority=300)
    member = caller_of(account("sub", hush_hush=Role.SUBMITTER))
    refused = submit(member, SECRET, priority=301)
    assert refused.status_code == 422
    (fault,) = refused.json()["errors"]
    assert fault["pointer"] == "/spec/scheduling/priority"
    assert "301 is above the maximum of the project hush-hush, which is 300" in fault["message"]
    assert submit(member, SECRET).status_code == 422, "the default of 500 is above it too"
    assert member.post("/jobs?dry_run=true", spec("mine", SECRET, priority=301)).status_code == 422
    assert submit(member, SECRET, priority=300).status_code == 201


def test_a_token_of_a_project_makes_tokens_of_that_project_alone_and_reads_of_the_fleet(db: None) -> None:
    tenants()
    both = account("amy", fleet="admin", hush_hush=Role.OPERATOR, daylight=Role.ADMIN)
    bound = caller_of(both, "operate", project=SECRET)
    made = bound.post("/tokens", {"name": "child", "scope": "operate"})
    assert (made.status_code, made.json()["project"]) == (201, SECRET)
    assert bound.post("/tokens", {"name": "child", "scope": "operate", "project": OTHER}).status_code in (403, 422)
    assert bound.post("/tokens", {"name": "child", "scope": "admin"}).status_code == 403
    child = Caller(made.json()["token"])
    assert child.get("/me").json()["projects"] == {SECRET: "operate"}
    assert child.get("/nodes").status_code == 200
    assert child.post("/nodes/x:cordon", {"reason": "r"}).status_code == 403
    # Without a role there any more, the token is good for nothing but reading the fleet.
    both.memberships.all().delete()
    both.is_superuser = False
    both.save()
    both.groups.clear()
    assert child.get("/me").json()["projects"] == {}


def test_a_token_has_no_more_in_a_project_than_its_account(db: None) -> None:
    tenants()
    viewer = account("vic", hush_hush=Role.VIEWER)
    page = caller_of(viewer, project=SECRET)
    for body in ({"scope": "operate", "project": SECRET}, {"scope": "operate"}):
        assert page.post("/tokens", {"name": "x"} | body).status_code == 403
    unseen = page.post("/tokens", {"name": "x", "scope": "read", "project": OTHER})
    assert unseen.status_code == 422
    assert unseen.json()["errors"][0]["pointer"] == "/project"
