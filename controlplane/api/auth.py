"""Who is asking, and what he may do. The one place of authorisation under the API.

Two doors: an API token (`Authorization: Bearer holdfast_...`), or the page's session
with CSRF for writes. Both end in a `Principal` with one scope; scopes include each
other in the order read, submit, operate, admin.
"""

from dataclasses import dataclass

from django.contrib.auth.models import AbstractBaseUser, User
from django.http import HttpRequest
from ninja.security.base import AuthBase
from ninja.utils import check_csrf

from controlplane.access.models import Scope
from controlplane.access.services import SCOPES, allows, find_api_token, scope_of, token_name
from controlplane.api.problems import Kind, Problem
from controlplane.api.throttle import allow


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """`name` identifies who acted in audit and idempotency: `user:ada` or `token:tok_...`."""

    user: AbstractBaseUser
    username: str
    scope: Scope
    name: str

    @property
    def scopes(self) -> list[str]:
        """Every scope held, weakest first."""
        return [scope.value for scope in SCOPES if allows(self.scope, scope)]

    def may(self, needed: Scope) -> bool:
        """True if `needed` is held."""
        return allows(self.scope, needed)


def _checked(request: HttpRequest, principal: Principal, needed: Scope) -> Principal:
    note_actor(request, principal.name)
    if not principal.may(needed):
        raise Problem(Kind.FORBIDDEN, f"This needs the scope {needed.value}; you have {principal.scope.value}.")
    wait_s = allow(principal.name)
    if wait_s is not None:
        raise Problem(Kind.TOO_MANY_REQUESTS, "Slow down.", headers={"Retry-After": str(wait_s)})
    return principal


def note_actor(request: HttpRequest, name: str) -> None:
    """Whom a refusal of this request concerns (`ApiEdgeMiddleware` audits it)."""
    request.holdfast_actor = name  # type: ignore[attr-defined]


class TokenAuth(AuthBase):
    """API token of CLI and SDK."""

    openapi_type = "http"
    openapi_scheme = "bearer"
    openapi_name = "token"

    def __init__(self, needed: Scope) -> None:
        self.needed = needed
        super().__init__()

    def __call__(self, request: HttpRequest) -> Principal | None:
        """None without the header; a wrong token ends the request, whatever cookies it has."""
        header = request.headers.get("Authorization")
        if header is None:
            return None
        kind, _, secret = header.partition(" ")
        token = find_api_token(secret.strip()) if kind.lower() == "bearer" else None
        if token is None:
            note_actor(request, token_name(secret.strip()))
            raise Problem(
                Kind.BAD_CREDENTIALS, "The token is unknown, expired or revoked; `holdfast login` takes a new one."
            )
        principal = Principal(
            user=token.user,
            username=token.user.get_username(),
            scope=Scope(token.scope),
            name=f"token:{token.id}",
        )
        return _checked(request, principal, self.needed)


class SessionAuth(AuthBase):
    """The page's session cookie; unsafe methods prove themselves with the CSRF header."""

    openapi_type = "apiKey"
    openapi_in = "cookie"
    openapi_name = "session"
    param_name = "sessionid"

    def __init__(self, needed: Scope) -> None:
        self.needed = needed
        super().__init__()

    def __call__(self, request: HttpRequest) -> Principal | None:
        """None when nobody is signed in."""
        user = request.user
        if not isinstance(user, User) or not user.is_active:
            return None
        note_actor(request, f"user:{user.get_username()}")
        if check_csrf(request) is not None:
            raise Problem(Kind.CSRF, "Send the cookie `csrftoken` again in the header X-CSRFToken.")
        name, scope = user.get_username(), Scope(scope_of(user) or Scope.READ)
        principal = Principal(user=user, username=name, scope=scope, name=f"user:{name}")
        return _checked(request, principal, self.needed)


def needs(scope: Scope) -> list[AuthBase]:
    """Ninja's `auth=` for an operation: token first, then session."""
    return [TokenAuth(scope), SessionAuth(scope)]


def principal_of(request: HttpRequest) -> Principal:
    """Who passed `needs`."""
    principal = getattr(request, "auth", None)
    assert isinstance(principal, Principal), "an operation without auth= asked who is there"
    return principal
