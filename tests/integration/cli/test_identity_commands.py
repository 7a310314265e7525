"""An administrator's orders about nodes and join tokens, from the command line."""

from typing import Any

import pytest
from django.contrib.auth.models import User

from controlplane.access.models import AuditEntry, JoinToken
from controlplane.access.services import create_api_token
from controlplane.cli.exits import Exit
from tests.integration.backend.held import held_node
from tests.integration.cli.conftest import World
from tests.integration.cli.test_commands import Run

pytestmark = pytest.mark.django_db(transaction=True)


def administrators() -> str:
    """A token of an administrator."""
    User.objects.filter(username="ada").update(is_superuser=True)
    return create_api_token(User.objects.get(username="ada"), name="admin", scope="admin").secret


def test_an_administrator_decides_who_the_nodes_are(world: World, holdfast: Run, monkeypatch: Any) -> None:
    assert holdfast("node", "revoke", "node-2").code == Exit.AUTH
    monkeypatch.setenv("HOLDFAST_TOKEN", administrators())
    assert holdfast("node", "revoke", "node-2", "-r", "stolen").code == Exit.OK
    assert "revoked" in holdfast("node", "ls").out
    assert holdfast("node", "rotate-key", "node-2").code == Exit.CONFLICT
    token = holdfast("node", "re-enrol", "node-2").out.strip()
    row = JoinToken.objects.get()
    assert token.startswith("holdfast_join_")
    assert (row.name, row.takeover, row.uses_left) == ("node-2", True, 1)
    assert token not in holdfast("join-token", "ls", "-o", "json").out
    assert holdfast("node", "restore", "node-2").code == Exit.OK
    assert holdfast("node", "rotate-key", "node-2").code == Exit.OK
    assert holdfast("node", "confirm", "node-2", "-r", "it is ours").code == Exit.CONFLICT
    refused = holdfast("node", "rm", "node-2")
    assert refused.code == Exit.CONFLICT
    assert "ranks are placed" in refused.err


def test_join_tokens_are_bound_shown_once_and_revoked(world: World, holdfast: Run, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", administrators())
    unbound = holdfast("join-token", "create")
    assert unbound.code == Exit.USAGE
    assert "bound to nobody" in unbound.err
    assert holdfast("join-token", "create", "--cidr", "everywhere").code == Exit.USAGE
    made = holdfast("join-token", "create", "--cidr", "10.0.0.0/8", "--uses", "3", "--ttl", "2", "-o", "json").json
    assert (made["uses_left"], made["cidr"]) == (3, "10.0.0.0/8")
    assert "(token " in made["created_by"]
    assert holdfast("join-token", "revoke", made["id"]).code == Exit.OK
    assert JoinToken.objects.get().revoked_at is not None


def test_a_token_for_a_pattern_of_names_says_so_and_its_text_says_what_to_revoke(
    world: World, holdfast: Run, monkeypatch: Any
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", administrators())
    both = holdfast("join-token", "create", "--name", "gpu-1", "--name-pattern", "gpu-*")
    assert both.code == Exit.USAGE
    assert "not both" in both.err
    secret = holdfast("join-token", "create", "--name-pattern", "gpu-a1-*", "--uses", "40", "--hold").out.strip()
    row = JoinToken.objects.get()
    assert (row.name_pattern, row.uses_left, row.hold) == ("gpu-a1-*", 40, True)
    listed = holdfast("join-token", "ls").out
    assert "gpu-a1-*" in listed
    assert "HOLDS" in listed
    found = secret.removeprefix("holdfast_join_").rpartition("_" + secret[-43:])[0]
    assert holdfast("join-token", "revoke", found).code == Exit.OK
    assert JoinToken.objects.get().revoked_at is not None


def test_a_held_node_is_listed_with_its_reason_and_admitted_by_an_administrator(
    world: World, holdfast: Run, monkeypatch: Any
) -> None:
    row = held_node("node-3")
    listed = holdfast("node", "ls", "-o", "wide")
    assert "waits for an administrator" in listed.out
    assert "holdfast node confirm node-3" in listed.err
    assert holdfast("node", "confirm", "node-3", "-r", "ours").code == Exit.AUTH
    refused = holdfast("node", "uncordon", "node-3")
    assert refused.code == Exit.CONFLICT
    assert "holdfast node confirm node-3" in refused.err
    monkeypatch.setenv("HOLDFAST_TOKEN", administrators())
    assert holdfast("node", "confirm", "node-3", "-r", "serial number checked").code == Exit.OK
    row.refresh_from_db()
    assert (row.state, row.held) == ("ready", False)
    entry = AuditEntry.objects.get(action="node.confirm")
    assert (entry.actor[:6], entry.reason, entry.data["held"]) == ("token:", "serial number checked", True)
    assert "node-3" not in holdfast("node", "ls").err
