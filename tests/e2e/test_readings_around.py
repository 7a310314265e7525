"""What an incident's devices read around its fault, on its page before the real web process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from controlplane.fleet.models import Node
from controlplane.protocol import frames
from controlplane.protocol.samples import XidEvent
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.models import Incident
from controlplane.telemetry.codec import METRICS, Chunk, quantised
from controlplane.telemetry.services import store_chunks
from tests.e2e.browser import Complaints, Target, axe_violations, picture, sign_in
from tests.e2e.test_pages_real import OVERFLOW
from tests.integration.backend.builders import make_fleet

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
WAIT_MS = 20_000
SCHEMES: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 320, "height": 720}, "color_scheme": "light"},
}


@contextmanager
def opened(chromium: Browser, where: Target, scheme: str) -> Iterator[Page]:
    context = chromium.new_context(**SCHEMES[scheme], reduced_motion="reduce", timezone_id="UTC")
    context.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    sign_in(context, where)
    yield context.new_page()
    context.close()


def dead_device() -> tuple[Incident, Node]:
    """An XID on device 1 of a free node, two uncorrectable errors before it, a hole of 39 s, and a second device that
    works."""
    fleet = make_fleet(1)
    node = Node.objects.get()
    fleet.tell(node.name, frames.XidSeen(XidEvent(index=1, xid=48)))
    reconcile_fleet()
    incident = Incident.objects.get()
    at_s = incident.opened_at.timestamp()
    t_s = at_s - 299.5 + np.arange(300.0)
    t_s = t_s[(t_s < at_s - 120) | (t_s > at_s - 81)]
    values = np.full((len(METRICS), 2, len(t_s)), np.nan)
    wave = np.sin(np.arange(len(t_s)) / 9)
    flat = {"power_limit_w": 700.0, "sm_clock_mhz": 1980.0, "throttled": 0.0, "memory_used_bytes": 6e10}
    for name, value in flat.items():
        values[METRICS.index(name)] = value
    values[METRICS.index("ecc_uncorrected_total"), 1] = np.where(t_s > at_s - 12, 2.0, 0.0)
    values[METRICS.index("temperature_c"), 1] = 61 + wave
    values[METRICS.index("power_w"), 1] = 430 + 9 * wave
    values[METRICS.index("utilization_ratio"), 1] = 0.95 + 0.02 * wave
    store_chunks({node.id: quantised(Chunk(t_s=t_s, devices=[0, 1], values=values))})
    return incident, node


def test_what_changed_is_said_drawn_and_never_drawn_across_a_hole(real: Target, chromium: Browser) -> None:
    incident, node = dead_device()
    for scheme in SCHEMES:
        with opened(chromium, real, scheme) as page:
            complaints = Complaints(origin=real.url)
            complaints.watch(page)
            page.goto(f"{real.url}/incidents/{incident.id}")
            panel = page.get_by_role("region", name="Device readings around the fault")
            expect(panel.get_by_role("heading", level=3)).to_have_text(f"{node.name} gpu 1")
            expect(panel).to_contain_text("XID 48")
            expect(panel).to_contain_text("Uncorrectable memory errors rose by 2, to 2 (limit: 1 in 60 s).")
            expect(panel).to_contain_text("No readings between")
            assert panel.locator("figcaption").all_text_contents() == [
                "Uncorrectable memory errors", "Temperature", "Power", "Utilisation",
            ]  # fmt: skip
            expect(panel).to_contain_text("Did not change: memory used 55.9 GiB, sm clock 1980 MHz")
            panel.get_by_text("Values before, during and after the fault").click()
            row = panel.get_by_role("row", name="Uncorrectable memory errors")
            expect(row.get_by_role("cell")).to_have_text(
                [f"{node.name} gpu 1", "Uncorrectable memory errors", "2", "0", "2", "not read"]
            )
            page.wait_for_load_state("networkidle")
            picture(page, f"around-{scheme}")
            assert axe_violations(page) == []
            assert page.evaluate(OVERFLOW) <= 0
            assert complaints.found == []


def test_readings_that_are_not_there_yet_are_said_to_be_awaited(real: Target, chromium: Browser) -> None:
    fleet = make_fleet(1)
    fleet.tell("n1", frames.XidSeen(XidEvent(index=1, xid=79)))
    reconcile_fleet()
    with opened(chromium, real, "light") as page:
        page.goto(f"{real.url}/incidents/{Incident.objects.get().id}")
        panel = page.get_by_role("region", name="Device readings around the fault")
        expect(panel).to_contain_text("The readings of this time are not there yet")
        expect(panel).to_contain_text("No readings of device 1 of n1 are there yet; what it sent comes within seconds")
        picture(page, "around-empty")
        assert axe_violations(page) == []


def test_readings_are_asked_for_once_and_not_where_no_node_is_named(real: Target, chromium: Browser) -> None:
    incident, _ = dead_device()
    with opened(chromium, real, "light") as page:
        seen: list[str] = []
        page.on("request", lambda request: seen.append(request.url))
        page.goto(f"{real.url}/incidents/{incident.id}")
        page.get_by_role("region", name="Device readings around the fault").locator("figure").first.wait_for()
        page.wait_for_timeout(16_000)
        details = [url for url in seen if url.endswith(f"/incidents/{incident.id}")]
        assert len(details) > 2, "the incident itself is read again"
        assert len([url for url in seen if url.endswith("/readings")]) == 1
        Incident.objects.filter(pk=incident.pk).update(node=None)
        incident.signals.update(node=None)
        seen.clear()
        page.reload()
        expect(page.get_by_role("heading", level=1)).to_have_text(incident.title)
        page.wait_for_load_state("networkidle")
        expect(page.get_by_role("region", name="Device readings around the fault")).to_have_count(0)
        assert not [url for url in seen if url.endswith("/readings")]
