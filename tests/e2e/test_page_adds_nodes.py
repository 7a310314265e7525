"""An administrator adds a node on the page: a join token, the commands as they are shown, and the node as it comes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.contrib.auth.models import Group, User
from playwright.sync_api import Browser, expect

from controlplane.access.models import JoinToken
from controlplane.fleet.models import Node
from tests.e2e.browser import REPOSITORY, Target
from tests.e2e.test_page_orders import looks_well
from tests.e2e.test_pages_real import DESK, opened

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(360)]
ENROLS_MS = 90_000


@contextmanager
def shell(text: str, where: Path) -> Iterator[None]:
    """These commands on a node of two simulated devices, until the block ends."""
    own = {"PROBE": "simulated", "DEVICES": "2", "STATE_DIR": str(where / "state"), "METRICS_BIND": "off"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {f"HOLDFAST_AGENT_{name}": value for name, value in own.items()}
    with (where / "log").open("w") as log:
        node = subprocess.Popen(
            ["bash", "-e", "-c", text], cwd=where, stdout=log, stderr=log, start_new_session=True,
            env=environment | {"PATH": path, "PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip
        try:
            yield
        finally:
            os.killpg(node.pid, signal.SIGKILL)
            node.wait()


def test_a_node_enrols_by_the_commands_that_are_shown_and_appears_below_them(
    real: Target, chromium: Browser, tmp_path: Path
) -> None:
    with opened(chromium, real, DESK) as page:
        page.goto(f"{real.url}/nodes")
        page.get_by_role("button", name="Add nodes").click()
        dialog = page.get_by_role("dialog", name="Add nodes")
        looks_well(page, "add-nodes")
        dialog.get_by_label("Which nodes may enrol").select_option("name")
        dialog.get_by_label("Name", exact=True).fill("gpu-1")
        dialog.get_by_label("Valid for").select_option("15 minutes")
        dialog.get_by_role("button", name="Make a join token").click()
        commands = dialog.get_by_label("Commands for the node")
        expect(commands).to_contain_text("holdfast_join_")
        expect(dialog.get_by_role("status")).to_have_text("Waiting for the first node.")
        row = JoinToken.objects.get()
        assert (row.name, row.uses_left, round((row.expires_at - row.created_at).total_seconds())) == ("gpu-1", 1, 900)
        with shell(commands.inner_text(), tmp_path):
            expect(dialog.get_by_role("status")).to_contain_text("Node gpu-1 enrolled.", timeout=ENROLS_MS)
            looks_well(page, "add-nodes-enrolled")
            dialog.get_by_role("link", name="Node gpu-1 enrolled.").click()
            expect(page.get_by_role("heading", level=1)).to_contain_text("gpu-1")
    assert Node.objects.get().name == "gpu-1"


def test_who_is_no_administrator_is_told_that_it_takes_one(real: Target, chromium: Browser) -> None:
    User.objects.get(username=real.username).groups.set([Group.objects.get_or_create(name="operate")[0]])
    with opened(chromium, real, DESK) as page:
        page.goto(f"{real.url}/nodes")
        expect(page.get_by_text("No nodes yet")).to_be_visible()
        button = page.get_by_role("button", name="Add nodes")
        expect(button).to_be_disabled()
        expect(button).to_have_accessible_description("This needs the scope admin; you have operate.")
