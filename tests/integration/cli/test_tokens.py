"""API tokens from the command line: a revoked one is refused from then on."""

import pytest

from controlplane.access.models import ApiToken, AuditEntry
from controlplane.cli.exits import Exit
from tests.integration.cli.conftest import World
from tests.integration.cli.test_commands import Run

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_revoked_token_opens_nothing_any_more(world: World, holdfast: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made = holdfast("token", "create", "for a script", "--scope", "read", "-o", "json").json
    with monkeypatch.context() as as_script:
        as_script.setenv("HOLDFAST_TOKEN", made["token"])
        assert holdfast("job", "ls").code == Exit.OK
    revoked = holdfast("token", "revoke", made["id"])
    assert revoked.code == Exit.OK and revoked.out.strip()
    assert ApiToken.objects.get(pk=made["id"]).revoked_at is not None
    assert AuditEntry.objects.filter(action="api_token.revoke").exists()
    with monkeypatch.context() as as_script:
        as_script.setenv("HOLDFAST_TOKEN", made["token"])
        assert holdfast("job", "ls").code == Exit.AUTH
    assert holdfast("job", "ls").code == Exit.OK, "the token that revoked it"
    assert holdfast("token", "revoke", "none-such").code == Exit.NOT_FOUND
