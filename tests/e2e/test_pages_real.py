"""Every page of the real web process, over rows that the agents' own messages made: in light, dark
and on a phone, empty, with what is not there, and at 1,000 rows. Each renders without an error in
the console, a request elsewhere, a WCAG A or AA violation, or a page that scrolls sideways."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Job
from controlplane.jobs.services import submit_job
from controlplane.protocol import frames
from controlplane.protocol import spec as specs
from controlplane.protocol.samples import XidEvent
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.models import Decision, Incident
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import now_s
from controlplane.telemetry.codec import METRICS, Chunk
from controlplane.telemetry.services import store_chunk
from tests.e2e.browser import Complaints, Target, axe_violations, picture, sign_in
from tests.integration.backend.builders import Fleet, commit_step, join_all, kill_rank, live_ranks, make_fleet, run_job
from tests.integration.backend.conftest import job_spec

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(360)]
SCHEMES: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
WAIT_MS = 20_000
ROWS = 1_000


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    """Light and dark on a desk; light on a phone."""
    return str(request.param)


@pytest.fixture
def page(real: Target, chromium: Browser, scheme: str) -> Iterator[Page]:
    """A page of an operator who is signed in."""
    context = chromium.new_context(**SCHEMES[scheme], reduced_motion="reduce", timezone_id="UTC")
    context.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    sign_in(context, real)
    yield context.new_page()
    context.close()


def history(node: Node) -> None:
    """Ten minutes of readings: two devices, counters that count nothing, and a hole."""
    seconds = now_s() - np.arange(600, 0, -1, dtype=np.float64)
    seconds = seconds[(seconds < seconds[200]) | (seconds > seconds[260])]
    values = np.zeros((len(METRICS), 2, len(seconds)), dtype=np.float32)
    for device in (0, 1):
        values[METRICS.index("temperature_c"), device] = 61 + 4 * device + np.sin(np.arange(len(seconds)) / 20)
        values[METRICS.index("power_w"), device] = 420 + 9 * np.cos(np.arange(len(seconds)) / 15)
    values[METRICS.index("nvlink_error_total")] = np.nan
    store_chunk(node.id, Chunk(t_s=seconds, devices=(0, 1), values=values))


def named(name: str, **changes: Any) -> specs.JobSpec:
    """A spec of that name."""
    spec = job_spec(**changes)
    return specs.JobSpec(metadata=specs.Metadata(name=name), spec=spec.spec)


def lived(fleet: Fleet) -> dict[str, str]:
    """A fleet that has seen something: a job that lost a rank and goes on, one that waits, one that was lost,
    a dead device under no job. The addresses of its objects by name."""
    job = run_job(fleet, steps=30)
    kill_rank(fleet, next(row for row in live_ranks(job) if row.replica.index == 1))
    reconcile_job(job.id)
    join_all(fleet, job)
    for step in range(30, 34):
        commit_step(fleet, job, step)
    waits = submit_job(named("waits", resources=specs.Resources(nodes=40, gpus_per_node=2)), owner="bo", actor="bo")
    reconcile_job(waits.id)
    free = Node.objects.filter(devices__ranks=None, devices__reservation=None).latest("name").name
    fleet.tell(free, frames.XidSeen(XidEvent(index=1, xid=79)))
    reconcile_fleet()
    for node in Node.objects.all():
        history(node)
    incident = Incident.objects.filter(job=job).latest("opened_at")
    hit = Node.objects.get(name=free)
    return {
        "job": f"/jobs/{job.id}",
        "job-decisions": f"/jobs/{job.id}?tab=decisions",
        "job-pending": f"/jobs/{waits.id}",
        "incident": f"/incidents/{incident.id}",
        "incident-fleet": f"/incidents/{Incident.objects.get(job=None).id}",
        "decision": f"/decisions/{Decision.objects.filter(job=job, routine=False).latest('at').id}",
        "node": f"/nodes/{fleet.nodes['n1'].id}",
        "node-hit": f"/nodes/{hit.id}",
    }


FIXED = {
    "overview": "/", "overview-table": "/?map=table", "overview-job": "/?colour=job", "jobs": "/jobs",
    "submit": "/jobs/new", "incidents": "/incidents", "nodes": "/nodes",
}  # fmt: skip
# What a reader must find there, and what would be untrue.
SAID = {
    "overview": ("1 incident needs hardware", "1 out of service"),
    "job-pending": ("40 replicas of 2 need 80 devices, 5 are free", "none placed yet"),
    "incident-fleet": ("XID 79: GPU has fallen off the bus", "no job was hit", "since the fault"),
}
UNSAID = {
    "job": ("priority", "Priority"),
    "jobs": ("Priority", "0 / 0"),
    "job-pending": ("not reported", "attempt 0", "priority"),
    "incident-fleet": ("since the last progress",),
    "decision": ("grace s",),
}
LOST = {"job-missing": "/jobs/nothing", "node-missing": "/nodes/nothing", "incident-missing": "/incidents/nothing"}


def narrowest(page: Page) -> float:
    """Pixels of the narrowest sentence in a table."""
    return float(page.locator("td.words").evaluate_all("all => Math.min(Infinity, ...all.map(e => e.clientWidth))"))


def look(page: Page, where: Target, path: str, name: str, *, refused: tuple[int, ...] = (), whole: bool = True) -> None:
    """Open it, wait until it is drawn, and hold it against what every page must hold. Of a large
    one (`whole` false) what is in sight is pictured; 8,000 cells like one another are not judged one by one."""
    complaints = Complaints(origin=where.url, allowed_statuses=refused)
    complaints.watch(page)
    page.goto(where.url + path)
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    expect(page.locator(".skeleton")).to_have_count(0)
    page.wait_for_load_state("networkidle")
    picture(page, name, whole=whole)
    assert not whole or axe_violations(page) == [], name
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0, f"{name} scrolls sideways by {overflow} px"
    assert complaints.found == [], name
    assert narrowest(page) >= 150, f"{name} has one word a line"


def test_every_page_of_a_fleet_that_has_seen_something(page: Page, real: Target, scheme: str) -> None:
    addresses = FIXED | lived(make_fleet(6))
    for name, path in addresses.items():
        look(page, real, path, f"real-{name}-{scheme}")
        for said in SAID.get(name, ()):
            expect(page.locator("main")).to_contain_text(said)
        for untrue in UNSAID.get(name, ()):
            expect(page.locator("main")).not_to_contain_text(untrue)


def test_every_page_of_a_new_installation(page: Page, real: Target, scheme: str) -> None:
    for name, path in FIXED.items():
        look(page, real, path, f"empty-{name}-{scheme}")


def test_what_is_not_there_is_said_under_its_own_heading(page: Page, real: Target, scheme: str) -> None:
    for name, path in LOST.items():
        look(page, real, path, f"{name}-{scheme}", refused=(404,))
        expect(page.locator(".problem")).to_be_visible()
        expect(page.get_by_role("navigation", name="Breadcrumb")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light"], indirect=True)
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("console.error('said at load')", "said at load"),
        ("fetch('http://127.0.0.1:9/').catch(() => 0)", "127.0.0.1:9"),
    ],
)
def test_what_goes_wrong_while_a_page_loads_is_seen(
    page: Page, real: Target, scheme: str, fault: str, said: str
) -> None:
    page.add_init_script(fault)
    with pytest.raises(AssertionError, match=said):
        look(page, real, FIXED["jobs"], f"faulty-{scheme}")


def test_a_thousand_rows_of_everything(page: Page, real: Target, scheme: str) -> None:
    crowd()
    for name in ("overview", "jobs", "incidents", "nodes"):
        look(page, real, FIXED[name], f"thousand-{name}-{scheme}", whole=False)
    expect(page.get_by_text("200 of 1,000 nodes").first).to_be_visible()
    page.get_by_label("Search nodes").fill("GPU-0977")
    expect(page.locator("tbody tr")).to_have_count(1)


def crowd() -> None:
    """1,000 nodes of eight devices, jobs and incidents."""
    nodes = [
        Node(id=f"node_{i:04d}", name=f"gpu-{i:04d}", public_key=f"{i:043d}", connected=True, agent_version="0.1.0")
        for i in range(ROWS)
    ]
    Node.objects.bulk_create(nodes)
    Device.objects.bulk_create(
        Device(id=f"dev_{n}_{i}", node=node, index=i, uuid=f"GPU-{n}-{i}", model="H100", memory_bytes=1 << 36)
        for (n, node), i in itertools.product(enumerate(nodes), range(8))
    )
    base = submit_job(named("long-name-of-a-job-that-somebody-gave-it"), owner="ana", actor="ana")
    row = Job.objects.filter(pk=base.pk).values().get()
    states = ("running", "succeeded", "failed", "cancelled", "pending")
    Job.objects.bulk_create(
        Job(**(row | {"id": f"job_{i:04d}", "name": f"run-{i:04d}", "state": states[i % 5], "committed_step": i}))
        for i in range(ROWS)
    )
    Incident.objects.bulk_create(
        Incident(
            id=f"inc_{i:04d}", node=nodes[i], title=f"Rank {i} of replica 1 on gpu-{i:04d} ended with signal 9",
            opened_at=base.created_at, resolved_at=base.created_at, state="resolved", outcome="recovered",
            resolution="It goes on at full strength.", phases=[],
        )
        for i in range(ROWS)
    )  # fmt: skip
