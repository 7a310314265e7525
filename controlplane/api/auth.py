"""Who is asking, and what he may do. The one place of authorisation under the API.

Two doors: an API token (`Authorization: Bearer holdfast_...`), or the page's session
with CSRF for writes. Both end in a `Principal` with one scope in the fleet; scopes include each
other in the order read, submit, operate, admin. What belongs to a project is judged by the
rights in it, once it is known which (`api.reach`): its operations ask here only (`in_project`)
that the scope is held anywhere.
"""

from dataclasses import dataclass

from django.contrib.auth.models import AbstractBaseUser, User
from django.http import HttpRequest
from ninja.security.base import AuthBase
from ninja.utils import check_csrf

from controlplane.access.models import ApiToken, Scope
from controlplane.access.rights import Rights, rights_of
from controlplane.access.scopes import SCOPES, allows, effective_scope, scope_of
from controlplane.access.services import find_api_token, token_name
from controlplane.access.sessions import stored_key
from controlplane.access.standing import Standing
from controlplane.api.problems import Kind, Problem
from controlplane.api.throttle import allow


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """`name` identifies who acted in audit and idempotency: `user:ada` or `token:tok_...`.
    `scope` is what he may do now in the fleet; `standing` lets an open stream ask again."""

    user: AbstractBaseUser
    username: str
    scope: Scope
    name: str
    standing: Standing
    token: ApiToken | None = None

    @property
    def token_id(self) -> str | None:
        """The token that asks; None for a signed-in person."""
        return self.standing.key if self.standing.kind == "token" else None

    @property
    def scopes(self) -> list[str]:
        """Every scope held, weakest first."""
        return [scope.value for scope in SCOPES if allows(self.scope, scope)]

    def may(self, needed: Scope) -> bool:
        """True if `needed` is held in the fleet."""
        return allows(self.scope, needed)

    def rights(self) -> Rights:
        """In the fleet and in each project, as the rows have it now; `api.reach` asks once for a request."""
        found = rights_of(self.user, self.token)
        if found is None:
            raise Problem(Kind.BAD_CREDENTIALS, "The account was deactivated meanwhile.")
        return found


def _checked(request: HttpRequest, principal: Principal, needed: Scope, *, in_project: bool) -> Principal:
    note_actor(request, principal.name)
    held = principal.may(needed) or (in_project and allows(principal.rights().most, needed))
    if not held:
        raise Problem(Kind.FORBIDDEN, f"This needs the scope {needed.value}; you have {principal.scope.value}.")
    # All tokens that an account ever makes share one rate. Its sessions have theirs, so that nobody who has a
    # token of hers keeps her from the page on which it is revoked.
    account = f"{principal.standing.kind}s:{principal.user.pk}"
    request.holdfast_rate_of = account  # type: ignore[attr-defined]
    wait_s = allow(account)
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

    def __init__(self, needed: Scope, *, in_project: bool = False) -> None:
        self.needed = needed
        self.in_project = in_project
        super().__init__()

    def __call__(self, request: HttpRequest) -> Principal | None:
        """None without the header; a wrong token ends the request, whatever cookies it has."""
        header = request.headers.get("Authorization")
        if header is None:
            return None
        kind, _, secret = header.partition(" ")
        token = find_api_token(secret.strip()) if kind.lower() == "bearer" else None
        scope = None if token is None else effective_scope(token)
        if token is None or scope is None:
            note_actor(request, token_name(secret.strip()))
            raise Problem(
                Kind.BAD_CREDENTIALS, "The token is unknown, expired or revoked; `holdfast login` takes a new one."
            )
        principal = Principal(
            user=token.user,
            username=token.user.get_username(),
            scope=scope,
            name=f"token:{token.id}",
            standing=Standing(kind="token", key=token.id, user_id=token.user_id),
            token=token,
        )
        return _checked(request, principal, self.needed, in_project=self.in_project)


class SessionAuth(AuthBase):
    """The page's session cookie; unsafe methods prove themselves with the CSRF header."""

    openapi_type = "apiKey"
    openapi_in = "cookie"
    openapi_name = "session"
    param_name = "sessionid"

    def __init__(self, needed: Scope, *, in_project: bool = False) -> None:
        self.needed = needed
        self.in_project = in_project
        super().__init__()

    def __call__(self, request: HttpRequest) -> Principal | None:
        """None when nobody is signed in."""
        user = request.user
        if not isinstance(user, User) or not user.is_active:
            return None
        note_actor(request, f"user:{user.get_username()}")
        if check_csrf(request) is not None:
            raise Problem(Kind.CSRF, "Send the cookie `csrftoken` again in the header X-CSRFToken.")
        return _checked(request, signed_in(request, user), self.needed, in_project=self.in_project)


def signed_in(request: HttpRequest, user: User) -> Principal:
    """The person of the request's session."""
    name = user.get_username()
    key = stored_key(request.session.session_key or "")
    return Principal(
        user=user,
        username=name,
        scope=Scope(scope_of(user) or Scope.READ),
        name=f"user:{name}",
        standing=Standing(kind="session", key=key, user_id=user.pk),
    )


def needs(scope: Scope) -> list[AuthBase]:
    """Ninja's `auth=` for an operation on the fleet: token first, then session."""
    return [TokenAuth(scope), SessionAuth(scope)]


def needs_in_project(scope: Scope) -> list[AuthBase]:
    """`needs` for an operation on what belongs to a project, which the operation then judges by `api.reach`."""
    return [TokenAuth(scope, in_project=True), SessionAuth(scope, in_project=True)]


def who_asks(request: HttpRequest, scope: Scope) -> Principal:
    """Through either door, for views outside the routers. Raises Problem (401) for nobody."""
    for door in needs(scope):
        principal = door(request)
        if isinstance(principal, Principal):
            return principal
    raise Problem(Kind.UNAUTHENTICATED, "Sign in, or send `Authorization: Bearer holdfast_...`.")


def principal_of(request: HttpRequest) -> Principal:
    """Who passed `needs`."""
    principal = getattr(request, "auth", None)
    assert isinstance(principal, Principal), "an operation without auth= asked who is there"
    return principal
