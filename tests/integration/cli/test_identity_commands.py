"""An administrator's orders about nodes and join tokens, from the command line."""

from typing import Any

import pytest
from django.contrib.auth.models import User

from controlplane.access.models import JoinToken
from controlplane.access.services import create_api_token
from controlplane.cli.exits import Exit
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
    assert made["created_by"].startswith("token:")
    assert holdfast("join-token", "revoke", made["id"]).code == Exit.OK
    assert JoinToken.objects.get().revoked_at is not None
