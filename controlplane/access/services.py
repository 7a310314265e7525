"""Credentials and audit: the only writer of this app's rows."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.db.models import F

from controlplane.access import tokens
from controlplane.access.audit import audit
from controlplane.access.models import ApiToken, JoinToken, OneTimePassword, Scope
from controlplane.runtime.clock import after, now
from controlplane.runtime.errors import Denied
from controlplane.runtime.ids import new_id

ONE_TIME_TTL_S = 3600.0
JOIN_TTL_S = 3600.0
JOIN_TTL_MAX_S = 7 * 86400.0
USED_EVERY_S = 60.0
SCOPES = (Scope.READ, Scope.SUBMIT, Scope.OPERATE, Scope.ADMIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A credential at the only moment its secret exists in clear."""

    id: str
    secret: str


def create_join_token(*, uses: int = 1, ttl_s: float = JOIN_TTL_S, actor: str = "console") -> Shown:
    """Lets `uses` agents enrol within `ttl_s` (capped at 7 days)."""
    secret = tokens.new_secret("holdfast_join_")
    row = JoinToken.objects.create(
        id=new_id("jt"),
        sha256=tokens.digest(secret),
        expires_at=after(min(ttl_s, JOIN_TTL_MAX_S)),
        uses_left=uses,
    )
    audit(actor, "join_token.create", row.id, data={"uses": uses, "ttl_s": ttl_s})
    return Shown(id=row.id, secret=secret)


def spend_join_token(secret: str) -> JoinToken:
    """Use it once. Raises Denied; one answer for unknown, expired, spent and revoked."""
    moment = now()
    changed = JoinToken.objects.filter(
        sha256=tokens.digest(secret), uses_left__gt=0, expires_at__gt=moment, revoked_at=None
    ).update(uses_left=F("uses_left") - 1)
    if not changed:
        raise Denied("this join token is unknown, expired, used up or revoked; ask an administrator for a new one")
    return JoinToken.objects.get(sha256=tokens.digest(secret))


def revoke_join_token(token_id: str, *, actor: str) -> bool:
    """True if it was live."""
    changed = JoinToken.objects.filter(id=token_id, revoked_at=None).update(revoked_at=now())
    audit(actor, "join_token.revoke", token_id, before={"live": bool(changed)}, after={"live": False})
    return bool(changed)


def create_api_token(
    user: AbstractBaseUser, *, name: str, scope: str = Scope.READ, ttl_s: float | None = None, actor: str = "console"
) -> Shown:
    """`holdfast_<scope>_<secret>`; `ttl_s` None never expires."""
    secret = tokens.new_secret(f"holdfast_{scope}_")
    row = ApiToken.objects.create(
        id=new_id("tok"),
        name=name,
        user=user,
        scope=scope,
        sha256=tokens.digest(secret),
        expires_at=None if ttl_s is None else after(ttl_s),
    )
    audit(actor, "api_token.create", row.id, data={"name": name, "scope": scope})
    return Shown(id=row.id, secret=secret)


def find_api_token(secret: str) -> ApiToken | None:
    """The live token of that secret with its user; notes the use at most once a minute."""
    moment = now()
    row = ApiToken.objects.select_related("user").filter(sha256=tokens.digest(secret), revoked_at=None).first()
    if row is None or (row.expires_at is not None and row.expires_at <= moment) or not row.user.is_active:
        return None
    if row.last_used_at is None and ApiToken.objects.filter(pk=row.pk, last_used_at=None).update(last_used_at=moment):
        audit(f"token:{row.id}", "api_token.first_use", row.id)
    elif row.last_used_at is None or moment - row.last_used_at > timedelta(seconds=USED_EVERY_S):
        ApiToken.objects.filter(pk=row.pk).update(last_used_at=moment)
    return row


def token_name(secret: str) -> str:
    """Who a token that was not accepted would have been: `token:<id>` also of a revoked or expired
    one, "token:unknown" of any other text."""
    known = ApiToken.objects.filter(sha256=tokens.digest(secret)).values_list("id", flat=True).first()
    return f"token:{known or 'unknown'}"


def revoke_api_token(token_id: str, *, actor: str) -> bool:
    """True if it was live."""
    changed = ApiToken.objects.filter(id=token_id, revoked_at=None).update(revoked_at=now())
    audit(actor, "api_token.revoke", token_id, before={"live": bool(changed)}, after={"live": False})
    return bool(changed)


def create_one_time_password(user: AbstractBaseUser, *, ttl_s: float = ONE_TIME_TTL_S, actor: str = "console") -> str:
    """Logs `user` in once within `ttl_s`; shown once."""
    secret = tokens.new_secret("otp_")
    OneTimePassword.objects.create(user=user, sha256=tokens.digest(secret), expires_at=after(ttl_s))
    audit(actor, "one_time_password.create", user.get_username())
    return secret


def spend_one_time_password(username: str, secret: str) -> AbstractBaseUser | None:
    """The user, or None. Two simultaneous uses: exactly one wins."""
    moment = now()
    live = OneTimePassword.objects.filter(
        user__username=username, sha256=tokens.digest(secret), used_at=None, expires_at__gt=moment
    )
    if not live.update(used_at=moment):
        return None
    return get_user_model().objects.filter(username=username, is_active=True).first()


@transaction.atomic
def create_admin(username: str, *, actor: str = "console") -> str:
    """Make (or find) an administrator; returns a one-time password."""
    user, made = get_user_model().objects.get_or_create(
        username=username, defaults={"is_staff": True, "is_superuser": True}
    )
    before = {"is_superuser": user.is_superuser and not made, "is_active": user.is_active and not made}
    audit(actor, "user.make_admin", username, before=before, after={"is_superuser": True, "is_active": True})
    if not user.has_usable_password():
        user.set_unusable_password()
    get_user_model().objects.filter(pk=user.pk).update(is_staff=True, is_superuser=True, is_active=True)
    return create_one_time_password(user, actor=actor)


def scope_of(user: Any) -> str | None:
    """Widest scope of a logged-in person: superuser admin, staff operate, else by group
    name, else read; None for nobody."""
    if not getattr(user, "is_authenticated", False):
        return None
    if user.is_superuser:
        return Scope.ADMIN
    if user.is_staff:
        return Scope.OPERATE
    groups = set(user.groups.values_list("name", flat=True))
    return next((scope for scope in reversed(SCOPES) if scope.value in groups), Scope.READ)


def allows(scope: str | None, needed: str) -> bool:
    """Each scope includes the ones before it."""
    order = [str(s) for s in SCOPES]
    return scope is not None and order.index(str(scope)) >= order.index(str(needed))
