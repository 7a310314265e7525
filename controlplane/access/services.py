"""Credentials and audit: the only writer of this app's rows."""

import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser, Group
from django.db import DatabaseError, transaction

from controlplane.access import lineage, tokens
from controlplane.access.audit import audit
from controlplane.access.models import ApiToken, OneTimePassword, Scope
from controlplane.access.projects import unknown_project
from controlplane.access.rights import rights_of
from controlplane.access.scopes import allows, scope_of
from controlplane.runtime.clock import after, now
from controlplane.runtime.errors import Conflict, Denied, Invalid
from controlplane.runtime.ids import new_id
from controlplane.runtime.logs import get

ONE_TIME_TTL_S = 3600.0
USED_EVERY_S = 60.0
UNNOTED_S = 5.0
MAX_LIVE_TOKENS = 1000
_log = get(__name__)
_unnoted_until_s = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A credential at the only moment its secret exists in clear."""

    id: str
    secret: str


def create_api_token(
    user: AbstractBaseUser,
    *,
    name: str,
    scope: str = Scope.READ,
    ttl_s: float | None = None,
    parent_id: str | None = None,
    project: str = "",
    actor: str = "console",
) -> Shown:
    """`holdfast_<scope>_<secret>`, good in `project` alone, "" wherever its account is. `ttl_s` None: as long as its
    maker `parent_id` lasts, without one for ever. Raises Denied for a scope beyond the owner's or the maker's, for a
    maker that is no longer live and for a project beside the maker's, Invalid for a time beyond the maker's and for a
    project that the account does not see."""
    rights = rights_of(user)
    if rights is None:
        raise Denied("the account is not active")
    if project and not rights.sees(project):
        raise Invalid(f"no project {project!r}", errors=[unknown_project(project, "/project")])
    most = rights.within(project) if project else rights.most
    if not allows(most, scope):
        where = f" in the project {project}" if project else ""
        raise Denied(f"the account has {most}{where}, so a token of it cannot have {scope}")
    secret, moment = tokens.new_secret(f"holdfast_{scope}_"), now()
    expires_at = None if ttl_s is None else after(ttl_s)
    with transaction.atomic():
        if parent_id is not None:
            project, expires_at = _bounded(parent_id, scope, project, expires_at)
        live = ApiToken.objects.filter(user=user, revoked_at=None).exclude(expires_at__lte=moment)
        if live.count() >= MAX_LIVE_TOKENS:
            raise Conflict(f"the account has {MAX_LIVE_TOKENS} live tokens; revoke some first")
        row = ApiToken.objects.create(
            id=new_id("tok"),
            name=name,
            user=user,
            parent_id=parent_id,
            scope=scope,
            project=project,
            sha256=tokens.digest(secret),
            expires_at=expires_at,
        )
        audit(
            actor,
            "api_token.create",
            row.id,
            data={"name": name, "scope": scope, "project": project, "parent": parent_id},
        )
    return Shown(id=row.id, secret=secret)


def _bounded(parent_id: str, scope: str, project: str, asked: datetime | None) -> tuple[str, datetime | None]:
    """To which project a child of this live token is bound, and when it ends at the latest. The row stays locked, so
    that a revocation finds the child."""
    parent = ApiToken.objects.select_for_update().filter(pk=parent_id, revoked_at=None).first()
    if parent is None or (parent.expires_at is not None and parent.expires_at <= now()):
        raise Denied("the token that asks has ended meanwhile")
    if not allows(parent.scope, scope):
        raise Denied(f"a token with {parent.scope} cannot make one with {scope}")
    if parent.project and project not in ("", parent.project):
        raise Denied(f"a token of the project {parent.project} makes tokens of that project alone")
    if parent.expires_at is not None and asked is not None and asked > parent.expires_at:
        left_s = int((parent.expires_at - now()).total_seconds())
        message = f"the token that asks ends in {left_s} s, and what it makes may not outlive it"
        fix = f"ask for at most {left_s}, leave it out to end with it, or sign in"
        raise Invalid(message, errors=[{"pointer": "/expires_in_s", "message": message, "fix": fix}])
    return project or parent.project, parent.expires_at if asked is None else asked


def find_api_token(secret: str) -> ApiToken | None:
    """The live token of that secret with its user; notes the use at most once a minute."""
    moment = now()
    row = ApiToken.objects.select_related("user").filter(sha256=tokens.digest(secret), revoked_at=None).first()
    if row is None or (row.expires_at is not None and row.expires_at <= moment) or not row.user.is_active:
        return None
    if row.last_used_at is None or moment - row.last_used_at > timedelta(seconds=USED_EVERY_S):
        _note_use(row, moment)
    return row


def _note_use(row: ApiToken, moment: datetime) -> None:
    """A database that takes no writes is read all the same: the use is noted once it takes them again. After a failure
    nothing is written for UNNOTED_S, so that not every read waits as long as a write does."""
    global _unnoted_until_s
    if time.monotonic() < _unnoted_until_s:
        return
    try:
        with transaction.atomic():
            first = ApiToken.objects.filter(pk=row.pk, last_used_at=None).update(last_used_at=moment)
            if first:
                audit(f"token:{row.id}", "api_token.first_use", row.id)
            else:
                ApiToken.objects.filter(pk=row.pk).update(last_used_at=moment)
    except DatabaseError as error:
        _unnoted_until_s = time.monotonic() + UNNOTED_S
        _log.warning("the use of a token could not be noted", token=row.id, error=str(error))


def token_name(secret: str) -> str:
    """Who a token that was not accepted would have been: `token:<id>` also of a revoked or expired
    one, "token:unknown" of any other text."""
    known = ApiToken.objects.filter(sha256=tokens.digest(secret)).values_list("id", flat=True).first()
    return f"token:{known or 'unknown'}"


@transaction.atomic
def revoke_api_token(token_id: str, *, actor: str) -> bool:
    """True if it was live. All that came from it ends with it."""
    moment = now()
    changed = ApiToken.objects.filter(id=token_id, revoked_at=None).update(revoked_at=moment)
    audit(actor, "api_token.revoke", token_id, before={"live": bool(changed)}, after={"live": False})
    # Level by level: a child being made holds its maker's row, so it is waited for and found.
    found, level = {token_id}, lineage.children([token_id])
    while level := level - found:
        ended = ApiToken.objects.filter(pk__in=level, revoked_at=None).update(revoked_at=moment)
        if ended:
            audit(actor, "api_token.revoke", token_id, data={"came_from_it": sorted(level)})
        found |= level
        level = lineage.children(level)
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


@transaction.atomic
def create_user(username: str, *, scope: str | None = None, actor: str = "console") -> str:
    """Make an account with that scope (read unless told), or find it; returns a one-time password.
    `scope` None leaves that of an account that exists."""
    user, made = get_user_model().objects.get_or_create(username=username)
    had = None if made else scope_of(user)
    if made:
        user.set_unusable_password()
    if made or scope is not None:
        user.is_superuser, user.is_staff = scope == Scope.ADMIN, scope in (Scope.ADMIN, Scope.OPERATE)
        user.groups.set([Group.objects.get_or_create(name=scope)[0]] if scope == Scope.SUBMIT else [])
        user.save()
    audit(actor, "user.make", username, before={"scope": had}, after={"scope": scope_of(user)})
    return create_one_time_password(user, actor=actor)
