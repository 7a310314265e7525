"""Whether those who were let in still stand: asked again and again while a stream is open.

A request is checked when it begins. A stream (the page's socket, server-sent events) goes on
for hours, so who opened it is looked up anew, in rows and not by a push: a sign-out, a
revocation, an expiry, a demotion, a deactivation and a new password all show there, also when
Redis is away. Called by `access.watch`; never writes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from django.contrib.auth.models import User
from django.contrib.sessions.models import Session

from controlplane.access.models import ApiToken
from controlplane.access.rights import Rights, rights_of_all
from controlplane.access.sessions import password_unchanged, signed_in_as
from controlplane.runtime.clock import now


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """By what somebody was let in: `key` is a token's id, or a session's stored key."""

    kind: Literal["token", "session"]
    key: str
    user_id: int


def rights_now(standings: Iterable[Standing]) -> dict[Standing, Rights]:
    """What each may still do; one that may do nothing any more is left out. Six queries,
    however many are asked for."""
    asked = set(standings)
    users = User.objects.filter(pk__in={one.user_id for one in asked}, is_active=True).prefetch_related("groups")
    active = {user.pk: user for user in users}
    tokens = _live_tokens({one.key for one in asked if one.kind == "token"})
    sessions = _live_sessions({one.key for one in asked if one.kind == "session"})
    standing: list[tuple[Standing, Any, ApiToken | None]] = []
    for one in asked:
        user = active.get(one.user_id)
        if user is None:
            continue
        if one.kind == "token" and one.key in tokens:
            standing.append((one, user, tokens[one.key]))
        elif one.kind == "session" and one.key in sessions and _same_person(sessions[one.key], user):
            standing.append((one, user, None))
    rights = rights_of_all([(user, token) for _, user, token in standing])
    return {one: found for (one, *_), found in zip(standing, rights, strict=True) if found is not None}


def _live_tokens(ids: set[str]) -> dict[str, ApiToken]:
    rows = ApiToken.objects.filter(pk__in=ids, revoked_at=None).exclude(expires_at__lte=now())
    return {row.pk: row for row in rows}


def _live_sessions(keys: set[str]) -> dict[str, Session]:
    return {row.session_key: row for row in Session.objects.filter(session_key__in=keys, expire_date__gt=now())}


def _same_person(row: Session, user: User) -> bool:
    told = signed_in_as(row)
    return told is not None and told[0] == str(user.pk) and password_unchanged(user, told[1])
