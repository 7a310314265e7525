"""holdfast request ..., node drain, and acts that wait for what they asked for."""

from collections.abc import Callable
from typing import Any

import pytest

from controlplane.cli.exits import Exit
from controlplane.fleet.models import Node
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.models import Request
from controlplane.runtime.clock import now
from tests.integration.cli.conftest import World

Run = Callable[..., Any]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Whatever is asked for is answered as `state` has it while the command looks at it."""
    from controlplane.api.routers import requests as router

    answer = {"state": "done"}

    def one(request_id: str) -> Any:
        Request.objects.filter(pk=request_id).update(answer="It was answered.", ended_at=now(), **answer)
        return Request.objects.select_related("job", "node").get(pk=request_id)

    monkeypatch.setattr(router.asked, "one", one)
    return answer


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        (["job", "checkpoint", "tiny"], "checkpoint"),
        (["job", "preempt", "tiny"], "preempt"),
        (["job", "evict-replica", "tiny", "1"], "evict"),
        (["rank", "fault", "tiny", "1", "0", "hang"], "fault"),
        (["node", "drain", "node-1"], "drain"),
    ],
)
@pytest.mark.parametrize(
    ("state", "code"), [("done", Exit.OK), ("refused", Exit.NEGATIVE), ("withdrawn", Exit.NEGATIVE)]
)
def test_an_act_that_waits_exits_by_the_end_of_its_request(
    world: World, holdfast: Run, answered: dict[str, str], argv: list[str], kind: str, state: str, code: Exit
) -> None:
    answered["state"] = state
    result = holdfast(*argv, "--wait", "-r", "r")
    assert (result.code, f"{state}: It was answered." in result.out) == (code, True), result.err
    assert Request.objects.get().kind == kind


def test_who_waits_too_long_is_told_that_it_goes_on(world: World, holdfast: Run) -> None:
    result = holdfast("job", "checkpoint", "tiny", "--wait", "--timeout", "0.1")
    assert result.code == Exit.TIMEOUT
    assert "it continues; holdfast request get ask_" in result.err


def test_what_was_asked_for_is_listed_shown_and_taken_back(world: World, holdfast: Run) -> None:
    assert holdfast("job", "checkpoint", "tiny", "-r", "before lunch").code == Exit.OK
    row = Request.objects.get()
    listed = holdfast("request", "ls", "--kind", "checkpoint", "--job", "tiny")
    assert row.pk in listed.out and "before lunch" in listed.out
    assert row.pk not in holdfast("request", "ls", "--state", "done").out
    assert holdfast("request", "ls", "-o", "name").out.split() == [row.pk]
    shown = holdfast("request", "get", row.pk)
    assert "It has not been answered yet." in shown.out
    assert holdfast("request", "withdraw", row.pk, "-r", "no need").code == Exit.OK
    row.refresh_from_db()
    assert "no need" in row.withdrawn_by
    assert holdfast("request", "get", "ask_none").code == Exit.NOT_FOUND


def test_a_node_is_drained_by_name_and_the_drain_taken_back(world: World, holdfast: Run) -> None:
    assert holdfast("node", "drain", "node-1", "--withdraw").code == Exit.CONFLICT
    done = holdfast("node", "drain", "node-1", "-r", "new fans")
    assert (done.code, "node-1 takes no new work" in done.out) == (Exit.OK, True)
    assert "holdfast node drain node-1 --withdraw" in done.err
    assert "draining" in holdfast("node", "ls").out
    assert holdfast("node", "drain", "node-1", "--withdraw", "-r", "not today").code == Exit.OK
    reconcile_fleet()
    assert Node.objects.get(name="node-1").state == "ready"
