"""People and tokens for the access matrix, and what can happen to their rights meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client

from controlplane.access.models import ApiToken
from controlplane.access.services import create_api_token, revoke_api_token
from controlplane.runtime.clock import now
from tests.integration.api.conftest import Caller, grant

PASSWORD = "correct horse battery"


class Browser(Caller):
    """A Caller that sends a session instead of a token, and the CSRF token with it."""

    def __init__(self, user: User) -> None:
        super().__init__()
        self._client = Client(raise_request_exception=False, enforce_csrf_checks=True)
        self._client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        self._headers = {"X-CSRFToken": self._client.get("/api/v1/me").json()["csrf"]}

    @property
    def cookie(self) -> str:
        """The Cookie header."""
        return "; ".join(f"{name}={morsel.value}" for name, morsel in self._client.cookies.items())

    @property
    def session_key(self) -> str:
        """The session's key, as only the browser has it."""
        return str(self._client.cookies["sessionid"].value)


@dataclass
class Someone:
    """One principal: `caller` speaks for it. `token` and `parent` are None for a session."""

    user: User
    caller: Caller
    token: ApiToken | None = None
    parent: ApiToken | None = None
    secret: str = ""


def by_token(user: User, scope: str) -> Someone:
    """A token that a token made, so that there is a parent to lose."""
    grant(user, scope)
    parent = create_api_token(user, name="parent", scope=scope)
    shown = create_api_token(user, name="child", scope=scope, parent_id=parent.id)
    return Someone(
        user,
        Caller(shown.secret),
        ApiToken.objects.get(pk=shown.id),
        ApiToken.objects.get(pk=parent.id),
        shown.secret,
    )


def by_session(user: User, scope: str) -> Someone:
    """A person at the page."""
    grant(user, scope)
    return Someone(user, Browser(User.objects.get(pk=user.pk)))


def _expire_token(who: Someone) -> None:
    assert who.token is not None
    ApiToken.objects.filter(pk=who.token.pk).update(expires_at=now() - timedelta(seconds=1))


def _revoke_token(who: Someone) -> None:
    assert who.token is not None
    revoke_api_token(who.token.id, actor="test")


def _revoke_parent(who: Someone) -> None:
    assert who.parent is not None
    revoke_api_token(who.parent.id, actor="test")


def _deactivate(who: Someone) -> None:
    User.objects.filter(pk=who.user.pk).update(is_active=False)


def _delete(who: Someone) -> None:
    User.objects.get(pk=who.user.pk).delete()


def _log_out(who: Someone) -> None:
    assert who.caller.post("/logout").status_code == 204


def _expire_session(who: Someone) -> None:
    Session.objects.update(expire_date=now() - timedelta(seconds=1))


def _new_password(who: Someone) -> None:
    user = User.objects.get(pk=who.user.pk)
    user.set_password("another long password")
    user.save()


def demote(who: Someone) -> None:
    """To an account that may read."""
    who.user.groups.clear()
    User.objects.filter(pk=who.user.pk).update(is_staff=False, is_superuser=False)


Ending = Callable[[Someone], Any]
TOKEN_ENDINGS: dict[str, Ending] = {
    "expired": _expire_token,
    "revoked": _revoke_token,
    "parent revoked": _revoke_parent,
    "owner deactivated": _deactivate,
    "owner deleted": _delete,
}
SESSION_ENDINGS: dict[str, Ending] = {
    "signed out": _log_out,
    "session expired": _expire_session,
    "password changed": _new_password,
    "owner deactivated": _deactivate,
    "owner deleted": _delete,
}
