"""Every control of the page that acts, for a viewer, a submitter and an operator of a project and an administrator: it
may be pressed where the server carries the order out, and says why not where the server would refuse it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from pytest_django.fixtures import Settings

from controlplane.access.join_tokens import Binding, create
from controlplane.access.project_models import Project, Role, Visibility
from controlplane.access.services import create_api_token
from controlplane.fleet import ends
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.policies.services import Edit, put
from controlplane.policies.whose import FLEETS, Whose
from controlplane.policy.document import Ground
from controlplane.protocol import spec as specs
from controlplane.protocol.states import Mode
from controlplane.recovery import reservations
from controlplane.recovery.disruption_models import Breaker
from controlplane.recovery.models import Decision, Incident
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import now
from tests.e2e.browser import FRONTEND, Complaints, Target, axe_violations, picture
from tests.e2e.test_pages_real import look_at_it_narrow, look_in_the_dark
from tests.integration.api.matrix import OPERATIONS
from tests.integration.api.principals import Browser as Session
from tests.integration.api.tenants import account, spec
from tests.integration.backend.builders import kill_rank, live_ranks, make_fleet, run_job
from tests.integration.backend.test_engines import HEADER, Player, line, pilot, slurm  # noqa: F401 - a fixture

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(360)]
PROJECT = "vision"
WHO = {
    "viewer": {PROJECT: Role.VIEWER},
    "submitter": {PROJECT: Role.SUBMITTER},
    "operator": {PROJECT: Role.OPERATOR},
    "root": {},
}
ELSEWHERE = {"/jobs/{job_id}:resume", "/policy/shadow:promote", "/policy/shadow:stop"}
"""Controls of objects in a state that none is in here: a preempted job, a policy that runs beside the live one."""

CONTROLS = """all => all.map(one => [one.dataset.does, one.dataset.project,
  one.getAttribute('aria-disabled') === 'true' ? one.title : '', one.disabled])"""
ASK = """asked => Promise.all(asked.map(([path, body]) => fetch('/api/v1' + path, {
  method: 'POST', body: JSON.stringify(body),
  headers: {'content-type': 'application/json', 'x-csrftoken': /csrftoken=([^;]+)/.exec(document.cookie)[1],
            'idempotency-key': crypto.randomUUID()}}).then(answer => answer.status)))"""


class Control(NamedTuple):
    """What a button orders, in which project ("": in the fleet, "*": in any), and why it may not be pressed."""

    does: str
    project: str
    why: str


def world() -> dict[str, str]:
    """A private project with a job that waits for a word of consent, and one of each other thing that is acted on:
    what stands in braces in an operation's path, by name."""
    project = Project.objects.create(name=PROJECT, visibility=Visibility.PRIVATE)
    fleet = make_fleet(4)
    job = run_job(fleet, steps=5, resiliency=specs.Resiliency(mode=Mode.RECOMMEND, act_after_s=3600.0))
    Job.objects.filter(pk=job.pk).update(project=PROJECT)
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    decision = Decision.objects.get(job=job, mode="recommend")
    node = fleet.nodes["n4"]
    Node.objects.filter(pk=node.pk).update(held=True, state="quarantined")
    later = now() + timedelta(hours=1)
    window = ends.plan(node, later, later + timedelta(hours=1), "a new fan", "user:ada")
    reserved = reservations.reserve(
        PROJECT, [fleet.nodes["n3"].id], (later, later + timedelta(hours=1)), reason="a deadline", actor="user:ada"
    )
    Breaker.objects.create(
        id="brk_1", code="share", reason="too many at once", opened_at=now(), decision_id=decision.id
    )
    for whose in (FLEETS, Whose(project=project)):
        put(whose, {"max_acts": 2}, Edit(parent=0, reason="calmer", actor="user:ada"), Ground())
    joins = create(Binding(name_pattern="gpu-*"), uses=1, ttl_s=3600.0, actor="user:ada")
    return {
        "job_id": job.id, "incident_id": Incident.objects.get(job=job).id, "decision_id": decision.id,
        "node_id": node.id, "window_id": window.id, "reservation_id": reserved.id, "breaker_id": "brk_1",
        "token_id": joins.id,
    }  # fmt: skip


@contextmanager
def signed_in(chromium: Browser, real: Target, name: str) -> Iterator[BrowserContext]:
    """A browser of this account, which has one API token."""
    user = account(name, fleet="admin" if name == "root" else "read", **WHO[name])
    create_api_token(user, name="nightly", scope="read")
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light", timezone_id="UTC")
    context.set_default_timeout(20_000)
    context.add_cookies([{"name": "sessionid", "value": Session(user).session_key, "url": real.url}])
    yield context
    context.close()


def seen_on(page: Page) -> set[Control]:
    """The controls that stand on the page. None may be out of reach for the keyboard."""
    expect(page.locator(".skeleton")).to_have_count(0)
    expect(page.locator('[data-project="?"]')).to_have_count(0)
    found = page.eval_on_selector_all("[data-does]", CONTROLS)
    assert not [one for one in found if one[3]], page.url
    return {Control(*one[:3]) for one in found}


def controls(page: Page, real: Target, ids: dict[str, str]) -> set[Control]:
    """Of every page, of a rank's log and of the sheet of faults."""
    job = f"/jobs/{ids['job_id']}"
    places = [
        "/jobs", "/jobs/new", "/nodes", f"/nodes/{ids['node_id']}", f"/incidents/{ids['incident_id']}",
        f"/decisions/{ids['decision_id']}", "/queue", "/policies", f"/policies?project={PROJECT}",
        "/access?tab=tokens", "/access?tab=agents", job,
    ]  # fmt: skip
    found: set[Control] = set()
    for place in places:
        page.goto(real.url + place)
        expect(page.get_by_role("heading", level=1)).to_have_count(1)
        found |= seen_on(page)
    page.get_by_role("button", name=re.compile("^Log of rank")).last.click()
    page.get_by_role("button", name="Read it now").wait_for()
    found |= seen_on(page)
    page.keyboard.press("Escape")
    page.goto(real.url)
    found |= seen_on(page)
    button = page.get_by_role("button", name="Inject a fault")
    if button.get_attribute("aria-disabled") is None:
        button.click()
        for name in ("Run out of spares", "Kill a rank"):
            page.get_by_role("button", name=name).click()
            chosen = page.get_by_role("button", name=f"Inject: {name}")
            expect(chosen).not_to_have_attribute("title", "Choose where first.")
            expect(chosen).not_to_have_attribute("data-project", "?")
            found |= seen_on(page)
    return found


def request_of(control: Control, project: str, ids: dict[str, str]) -> list[Any]:
    """Path and body of what the control orders."""
    body: Any = OPERATIONS[f"POST {control.does}"].body
    if control.does == "/jobs":
        body = spec("mine", project or "default")
    elif control.does == "/demo/faults" and project:
        body = {"kind": "kill_rank", "job_id": ids["job_id"], "replica": 0, "rank": 0}
    elif control.does.startswith("/policy:") and project:
        body = body | {"project": project}
    return [control.does.format(**ids), body]


def refused(page: Page, control: Control, ids: dict[str, str]) -> bool:
    """The server answers 403, to a control for any project in all of them."""
    projects = ["", PROJECT] if control.project == "*" else [control.project]
    return set(page.evaluate(ASK, [request_of(control, project, ids) for project in projects])) == {403}


def test_a_control_may_be_pressed_where_the_server_carries_its_order_out_and_says_why_not_elsewhere(
    real: Target,
    chromium: Browser,
    settings: Settings,
    slurm: Player,  # noqa: F811
) -> None:
    settings.HOLDFAST_DEMO = True
    ids = world() | {"pool_id": "9"}
    slurm.answers(line("n1", "ALLOCATED"), HEADER + pilot(1, node="n1") + pilot(2, "PENDING", why="Resources"))
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (FRONTEND / "src").rglob("*.tsx"))
    drawn = set(re.findall(r'\bdoes="([^"]+)"', sources)) - ELSEWHERE
    shown: set[str] = set()
    counted = {}
    for name in WHO:
        with signed_in(chromium, real, name) as context:
            page = context.new_page()
            complaints = Complaints(origin=real.url)
            complaints.watch(page)
            found = controls(page, real, ids)
            assert complaints.found == [], f"{name}: a page asks for nothing that is refused"
            shown |= {control.does for control in found}
            said = {control: control.why.startswith("This needs the scope") for control in found}
            assert said == {control: refused(page, control, ids) for control in sorted(found)}, name
            counted[name] = sum(said.values())
            if name == "viewer":
                shown_calmly(page, real, ids)
    assert shown >= drawn
    assert counted["viewer"] > counted["submitter"] > counted["operator"] > counted["root"] == 0


def shown_calmly(page: Page, real: Target, ids: dict[str, str]) -> None:
    """What may not be pressed is reached by the keyboard, and says why when it is pressed."""
    page.goto(f"{real.url}/nodes/{ids['node_id']}")
    button = page.get_by_role("button", name="Cordon", exact=True)
    reason = "This needs the scope operate; you have read."
    expect(button).to_be_disabled()
    expect(button).to_have_accessible_description(reason)
    button.focus()
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".why-not:popover-open")).to_have_text(reason)
    picture(page, "rights-viewer", whole=False)
    assert axe_violations(page) == []
    look_in_the_dark(page, "rights-viewer")
    look_at_it_narrow(page, "rights-viewer")
    expect(page.get_by_role("dialog")).to_have_count(0)
