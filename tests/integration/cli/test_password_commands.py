"""`holdfast password` and `holdfast login --user`: a person needs nobody with a shell on the server."""

import io
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from controlplane.access.models import ApiToken
from controlplane.access.services import create_one_time_password
from controlplane.cli.exits import Exit
from tests.integration.cli.conftest import World

Run = Any
NEW = "another horse, another battery"


@pytest.mark.django_db(transaction=True)
def test_from_a_one_time_password_to_a_saved_token(
    world: World, holdfast: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HOLDFAST_TOKEN")
    given = create_one_time_password(User.objects.get(username="ada"))
    assert typed(monkeypatch, holdfast, [given, "short"], "password", "ada").code == Exit.USAGE
    done = typed(monkeypatch, holdfast, [given, NEW], "password", "ada")
    assert (done.code, done.out) == (Exit.OK, "")
    assert typed(monkeypatch, holdfast, [given, NEW + "!"], "password", "ada").code == Exit.AUTH
    assert typed(monkeypatch, holdfast, ["a wrong one"], "login", "--user", "ada").code == Exit.AUTH
    done = typed(monkeypatch, holdfast, [NEW], "login", "--user", "ada", "--days", "1")
    assert done.code == Exit.OK, done.err
    assert NEW not in done.out + done.err
    made = ApiToken.objects.order_by("-created_at")[0]
    assert (made.scope, made.parent_id) == ("admin", None)
    assert made.expires_at is not None
    assert (tmp_path / "config.toml").stat().st_mode & 0o777 == 0o600
    assert holdfast("job", "ls").code == Exit.OK


def typed(monkeypatch: pytest.MonkeyPatch, holdfast: Run, lines: list[str], *argv: str) -> Any:
    """What the command answers to these lines on its standard input."""
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return holdfast(*argv)
