"""Join tokens and the nodes that wait for an administrator, as the API shows and changes them."""

from typing import Any

import pytest

from controlplane.access.models import JoinToken
from controlplane.fleet.models import Node
from tests.integration.backend.held import held_node

pytestmark = pytest.mark.django_db


def test_a_token_says_which_names_it_is_for_and_that_it_holds(caller: Any) -> None:
    admin = caller("admin")
    made = admin.post("/join-tokens", {"name_pattern": "gpu-a1-*", "uses": 40, "hold": True})
    assert made.status_code == 201
    said = made.json()
    assert (said["name"], said["name_pattern"], said["uses_left"], said["hold"]) == ("", "gpu-a1-*", 40, True)
    assert said["token"].startswith(f"holdfast_join_{said['id']}_")
    listed = admin.get("/join-tokens").json()["items"]
    assert [(row["name_pattern"], row["hold"]) for row in listed] == [("gpu-a1-*", True)]
    assert said["token"] not in str(listed)
    plain = admin.post("/join-tokens", {"name": "gpu-1"}).json()
    assert (plain["name_pattern"], plain["hold"]) == ("", False)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/name"),
        ({"hold": True}, "/name"),
        ({"name": "gpu-1", "name_pattern": "gpu-*"}, "/name_pattern"),
        ({"name_pattern": "gpu-1"}, "/name_pattern"),
        ({"name_pattern": "*"}, "/name_pattern"),
        ({"name_pattern": "gpu-(1|2)"}, "/name_pattern"),
        ({"name_pattern": "g*", "hold": "yes"}, "/hold"),
    ],
)
def test_a_token_that_binds_nobody_or_twice_is_refused_with_the_field(
    caller: Any, body: dict[str, Any], pointer: str
) -> None:
    refused = caller("admin").post("/join-tokens", body)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer)
    assert not JoinToken.objects.exists()


def test_a_held_node_is_listed_as_such_and_an_administrator_alone_admits_it(caller: Any) -> None:
    row = held_node("gpu-1")
    operator = caller("operate")
    for shown in (operator.get("/nodes").json()["items"][0], operator.get(f"/nodes/{row.id}").json()):
        assert (shown["state"], shown["held"]) == ("quarantined", True)
        assert "waits for an administrator" in shown["state_reason"]
    reason = {"reason": "serial number checked"}
    assert operator.post(f"/nodes/{row.id}:uncordon", reason).status_code == 409
    assert operator.post(f"/nodes/{row.id}:confirm", reason).status_code == 403
    assert Node.objects.get().held
    assert caller("admin").post(f"/nodes/{row.id}:confirm", reason).status_code == 202
    admitted = operator.get(f"/nodes/{row.id}").json()
    assert (admitted["state"], admitted["held"]) == ("ready", False)
    assert "serial number checked" in admitted["state_reason"]
