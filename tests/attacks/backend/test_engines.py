"""Slurm's texts and people's orders, as an attacker would write them: who may order, what reaches a command line, and
what a reason or a name can do."""

from typing import Any

import pytest

from controlplane.engines.models import EngineNode, Intent, PoolElement
from controlplane.engines.views import of_node
from controlplane.fleet import services as fleet
from controlplane.runtime.clock import now
from tests.integration.api.conftest import caller, user  # noqa: F401 - fixtures
from tests.integration.backend.builders import make_fleet
from tests.integration.backend.test_engines import HEADER, Player, line, pilot, slurm  # noqa: F401 - a fixture

pytestmark = pytest.mark.django_db


def element(pool: str = "9") -> None:
    PoolElement.objects.create(engine="slurm", pool=pool, index=1, job="9", state="PENDING", seen_at=now())


@pytest.mark.parametrize("scope", ["read", "submit"])
def test_who_may_only_read_or_submit_sees_pools_and_resizes_none(caller: Any, slurm: Player, scope: str) -> None:  # noqa: F811
    element()
    eve = caller(scope)
    assert eve.get("/engines").json()["items"][0]["pools"][0]["id"] == "9"
    assert eve.post("/pools/9:resize", {"size": 1, "reason": "r"}).status_code == 403
    assert not Intent.objects.exists()


@pytest.mark.parametrize("pool", ["9 state=drain", "9,10", "-1", "9%0Astate=down", "10", "*"])
def test_only_a_pool_that_slurm_lists_is_named_on_a_command_line(caller: Any, slurm: Player, pool: str) -> None:  # noqa: F811
    element()
    assert caller("operate").post(f"/pools/{pool}:resize", {"size": 1, "reason": "r"}).status_code in (404, 422)
    assert not Intent.objects.exists()


@pytest.mark.parametrize("size", [0, -1, 2, 1001, 1.5, "1 state=drain", None])
def test_a_size_that_is_none_or_more_than_there_are_is_refused(caller: Any, slurm: Player, size: Any) -> None:  # noqa: F811
    element()
    assert caller("operate").post("/pools/9:resize", {"size": size, "reason": "r"}).status_code in (409, 422)
    assert not Intent.objects.exists()


def test_a_persons_reason_is_one_argument_of_plain_characters(slurm: Player) -> None:  # noqa: F811
    make_fleet(1)
    fleet.cordon("node_1", reason="x state=down\nnodename=n2 $(id) `id` ; rm -rf / \x1b[31m \u202e", actor="eve")
    slurm.answers(line("n1"), HEADER)
    (asked,) = slurm.updates
    assert asked.startswith("update nodename=n1 state=drain reason=holdfast: cordoned. ")
    assert not set("$`=\x1b\u202e\n") & set(asked.partition("reason=")[2])


def test_names_and_comments_of_other_peoples_jobs_name_no_node_and_no_option(slurm: Player) -> None:  # noqa: F811
    make_fleet(1)
    hostile = "".join(
        pilot(number, node=node, comment=comment)
        for number, (node, comment) in enumerate(
            [("--help", ""), ("n1;id", ""), ("../n1", ""), ("n1", "holdfast:server=https://evil;grace_s=-1")], 1
        )
    )
    nodes = line("n1", "IDLE+DRAIN", "\x1b[2Jholdfast: mine [root@2026-11-30T09:00:00]") + line("N1") + line("--all")
    slurm.answers(nodes, HEADER + hostile)
    assert not EngineNode.objects.exists(), "two of Slurm's nodes have one name here: neither is meant"
    assert set(PoolElement.objects.values_list("node_name", "grace_s")) == {("", None), ("n1", None)}
    slurm.answers(line("n1", "IDLE+DRAIN", "\x1b[2Jholdfast: mine [root@2026-11-30T09:00:00]"), HEADER)
    shown = of_node("node_1")
    assert shown is not None and not shown["ours"], "whose reason only holds our word is not ours"
    assert "\x1b" not in shown["differs"] and not slurm.updates
