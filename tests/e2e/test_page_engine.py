"""What Slurm believes, on the pages of a node, of the queue and of a job, over rows of recorded answers."""

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from controlplane.engines.models import Intent
from controlplane.fleet import services as fleet
from controlplane.jobs.models import Rank
from tests.e2e.browser import Target
from tests.e2e.test_pages_real import DESK, PLACES, look, opened
from tests.integration.backend.builders import make_fleet, run_job
from tests.integration.backend.test_engines import HEADER, Player, line, pilot, slurm  # noqa: F401 - a fixture

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(360)]


def test_pages_say_what_slurm_believes_where_nodes_come_from_and_why_pilots_wait(
    real: Target,
    chromium: Browser,
    slurm: Player,  # noqa: F811
) -> None:
    nodes = make_fleet(4)
    job = run_job(nodes)
    busy = sorted(Rank.objects.filter(released_at=None).values_list("node__name", flat=True).distinct())
    assert busy
    fleet.cordon(nodes.nodes["n4"].id, reason="memory errors", actor="ada")
    listed = "".join(pilot(number, node=name) for number, name in enumerate((*busy, "n4"), 1))
    waiting = pilot(8, "PENDING", why="Resources") + pilot(9, "PENDING", why="(launch failed requeued held)")
    drained = line(busy[0], "ALLOCATED+DRAIN", "fan is loud [root@2026-11-30T09:00:00]")
    others = "".join(line(name, "ALLOCATED") for name in ("n1", "n2", "n3", "n4") if name != busy[0])
    slurm.answers(drained + others, HEADER + listed + waiting)
    assert Intent.objects.filter(state="sent").exists() is ("n4" not in busy)
    for place in PLACES:
        with opened(chromium, real, place) as page:
            look(page, real, f"/nodes/{nodes.nodes[busy[0]].id}", f"engine-node-{place}")
            panel = page.locator("section[aria-label='What Slurm believes']")
            expect(panel).to_contain_text("Slurm gives it no job (ALLOCATED+DRAIN: fan is loud, root")
            expect(panel).to_contain_text("pilot 9_1")
            look(page, real, "/queue", f"engine-queue-{place}")
            pools = page.locator('section[aria-label="Pools of Slurm\'s nodes"]')
            expect(pools).to_contain_text(f"{len(busy)} in use, 0 hot, 1 cold, 1 held, 1 others")
            expect(pools).to_contain_text("(launch failed requeued held)")
            expect(pools.get_by_role("row", name="9_8")).to_contain_text("Resources")
            look(page, real, f"/jobs/{job.id}", f"engine-job-{place}")
            expect(page.get_by_text("from Slurm, by pilots of pool 9.")).to_be_visible()
            expect(page.get_by_text("Slurm gives notice of 45 s")).to_be_visible()


def test_a_pool_is_resized_and_an_answer_that_does_not_come_is_told(
    real: Target,
    chromium: Browser,
    slurm: Player,  # noqa: F811
) -> None:
    make_fleet(1)
    slurm.answers(line("n1", "ALLOCATED"), HEADER + pilot(1, node="n1") + pilot(2, "PENDING", why="Resources"))
    slurm.answers(None, None)
    with opened(chromium, real, DESK) as page:
        page.goto(f"{real.url}/queue")
        pools: Any = page.locator('section[aria-label="Pools of Slurm\'s nodes"]')
        expect(pools.get_by_role("status")).to_contain_text("No answer: scontrol failed")
        pools.get_by_role("button", name="Resize").click()
        dialog = page.get_by_role("dialog", name="Resize pool 9")
        dialog.get_by_label("Pilots at a time (1 to 2)").fill("2")
        dialog.get_by_label("Reason (recorded with your name)").fill("a deadline")
        dialog.get_by_role("button", name="Resize", exact=True).click()
        expect(dialog).to_contain_text("slurm is asked to run 2 pilots of 9 at a time")
        dialog.get_by_role("button", name="Close").last.click()
        expect(pools).to_contain_text("2 pilots of pool 9 at a time")
    assert Intent.objects.get().size == 2
