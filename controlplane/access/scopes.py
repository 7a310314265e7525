"""The scopes: which includes which, and who has which in the fleet. In projects: `access.rights`."""

from typing import Any

from controlplane.access.models import ApiToken, Scope

SCOPES = (Scope.READ, Scope.SUBMIT, Scope.OPERATE, Scope.ADMIN)


def scope_of(user: Any) -> str | None:
    """Widest scope of a logged-in person: superuser admin, staff operate, else by group
    name, else read; None for nobody."""
    if not getattr(user, "is_authenticated", False):
        return None
    if user.is_superuser:
        return Scope.ADMIN
    if user.is_staff:
        return Scope.OPERATE
    groups = {group.name for group in user.groups.all()}
    return next((scope for scope in reversed(SCOPES) if scope.value in groups), Scope.READ)


def effective_scope(token: ApiToken) -> Scope | None:
    """What the token may do now in the fleet: no more than it was made for, and no more than its owner may; one that is
    bound to a project reads. In projects: `access.rights`."""
    owner = scope_of(token.user) if token.user.is_active else None
    if owner is None:
        return None
    return Scope.READ if token.project else narrower(token.scope, owner)


def narrower(one: str, other: str) -> Scope:
    """The one that includes less."""
    return Scope(one if allows(other, one) else other)


def allows(scope: str | None, needed: str) -> bool:
    """Each scope includes the ones before it."""
    order = [str(s) for s in SCOPES]
    return scope is not None and order.index(str(scope)) >= order.index(str(needed))
