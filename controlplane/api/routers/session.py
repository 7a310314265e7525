"""Signing in and out, who I am, API tokens, and the version."""

import math
from typing import Annotated

from django.conf import settings
from django.contrib.auth import authenticate, login, logout
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from ninja import Query, Router
from ninja.utils import check_csrf
from pydantic import Field

from controlplane.access import gate, lineage, passwords, services, signins
from controlplane.access.models import ApiToken, Scope
from controlplane.access.scopes import allows
from controlplane.api import bodies, pages
from controlplane.api.auth import Principal, needs, principal_of, signed_in, who_asks
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.idempotency import Effect, once
from controlplane.api.origin import from_another_site
from controlplane.api.problems import Kind, Problem
from controlplane.api.reach import reach
from controlplane.protocol import rest
from controlplane.protocol.version import VERSION
from controlplane.runtime.address import client_address
from controlplane.runtime.clock import iso
from controlplane.runtime.events import newest_seq

router = Router(tags=["session"])
API_REVISION = "v1"


@router.post("/login", summary="Sign in", openapi_extra=describe(rest.Me, body=bodies.Login, errors=(415, 422)))
def sign_in(request: HttpRequest) -> HttpResponse:
    """Name and password, or a one-time password; answers who you are and sets the session."""
    _refuse_another_site(request)
    body = bodies.read(request, bodies.Login)
    user = _proved(request, body.username, body.password)
    login(request, user)
    signins.signed_in(user.get_username(), user.backend)
    return send(_me(request, signed_in(request, user)))


@router.post(
    "/password",
    summary="Change a password",
    openapi_extra=describe(None, status=204, body=bodies.NewPassword, errors=(415, 422)),
)
def change_password(request: HttpRequest) -> HttpResponse:
    """By whoever knows the present one, or has a one-time password; no token can. Ends all sessions
    of the account and its unused one-time passwords; its tokens stay."""
    _refuse_another_site(request)
    body = bodies.read(request, bodies.NewPassword)
    # Before `current` is looked at: a refusal must not use up a one-time password.
    if faults := passwords.faults(body.password, old=body.current):
        raise Problem(
            Kind.INVALID, "The new password is not taken.", errors=[rest.FieldError("/password", *f) for f in faults]
        )
    user = _proved(request, body.username, body.current)
    passwords.change(user, body.password, method=signins.method_of(user.backend))
    logout(request)
    return HttpResponse(status=204)


@router.post("/logout", summary="Sign out", auth=needs(Scope.READ), openapi_extra=describe(None, status=204))
def sign_out(request: HttpRequest) -> HttpResponse:
    """Ends the session; a token stays valid until it is revoked."""
    principal = principal_of(request)
    signins.signed_out(principal.name, principal.username)
    logout(request)
    return HttpResponse(status=204)


@router.get("/me", summary="Who am I", openapi_extra=describe(rest.Me))
def me(request: HttpRequest) -> HttpResponse:
    """Sets the CSRF cookie also when it answers 401, so that the page can sign in next."""
    get_token(request)
    return send(_me(request, who_asks(request, Scope.READ)))


@router.get("/version", summary="Version of the server", openapi_extra=describe(rest.Version))
def get_version(request: HttpRequest) -> HttpResponse:
    """Needs no account."""
    return send({"version": VERSION, "api": API_REVISION})


class TokenFilter(pages.Listing):
    """Query of the token list."""

    everybody: Annotated[bool, Field(description="Of all accounts; administrators only.")] = False


@router.get(
    "/tokens",
    summary="API tokens",
    auth=needs(Scope.READ),
    openapi_extra=describe(list[rest.Token], errors=(422,)),
)
def tokens(request: HttpRequest, query: Query[TokenFilter]) -> HttpResponse:
    """Mine, without their secrets, which exist nowhere. A token sees itself and what came from it; an administrator
    may see those of `everybody`."""
    principal = principal_of(request)
    if query.everybody and not principal.may(Scope.ADMIN):
        raise Problem(Kind.FORBIDDEN, "Only administrators see the tokens of other accounts.")
    shown = ApiToken.objects.all()
    if not query.everybody:
        shown = lineage.visible(principal.user, token_id=principal.token_id)
    rows, after = pages.page(shown.select_related("user"), query, name="tokens")
    return send(pages.listing([_token(row) for row in rows], after, newest_seq(), total=pages.counted(query, shown)))


@router.post(
    "/tokens",
    summary="Make an API token",
    auth=needs(Scope.READ),
    openapi_extra=describe(rest.Token, status=201, body=bodies.NewToken, errors=(409, 415, 422)),
)
def create_token(request: HttpRequest) -> HttpResponse:
    """`token` is in this answer and nowhere else. Nobody can give more than he has: a token that
    a token makes ends no later than it (422), and with it when that is revoked."""
    body, principal = bodies.read(request, bodies.NewToken), principal_of(request)
    if body.scope not in Scope.values:
        told = rest.FieldError("/scope", f"{body.scope!r} is no scope", f"use one of {', '.join(Scope.values)}")
        raise Problem(Kind.INVALID, "The body is not valid.", errors=[told])
    rights = reach(request)
    most = rights.within(body.project) if body.project else rights.most
    if most is not None and not allows(most, body.scope):
        where = f" in the project {body.project}" if body.project else ""
        raise Problem(Kind.FORBIDDEN, f"You have {most}{where} and cannot give {body.scope}.")
    shown = services.create_api_token(
        principal.user,
        name=body.name,
        scope=body.scope,
        ttl_s=body.expires_in_s,
        parent_id=principal.token_id,
        project=body.project,
        actor=principal.name,
    )
    # Not kept for replays: a secret must not rest in the table of stored answers.
    response = send(_token(ApiToken.objects.get(pk=shown.id)) | {"token": shown.secret}, 201)
    response["Location"] = f"/api/v1/tokens/{shown.id}"
    return response


@router.post(
    "/tokens/{rid:token_id}:revoke",
    summary="Revoke an API token",
    auth=needs(Scope.READ),
    openapi_extra=describe(rest.Accepted, status=202, errors=(404, 409, 422)),
)
def revoke_token(request: HttpRequest, token_id: str) -> HttpResponse:
    """At once and for good, with all that came from it. A token may revoke itself and what came
    from it, a signed-in person all of his, an admin anybody's; other tokens are invisible."""
    principal = principal_of(request)

    def effect() -> Effect:
        rows = ApiToken.objects.all()
        if not principal.may(Scope.ADMIN):
            rows = lineage.visible(principal.user, token_id=principal.token_id)
        if not rows.filter(pk=token_id).exists():
            raise Problem(Kind.NOT_FOUND, "You have no such token.")
        revoked = services.revoke_api_token(token_id, actor=principal.name)
        return Effect(data={"detail": "Revoked." if revoked else "It was revoked before."})

    return once(request, effect)


def _refuse_another_site(request: HttpRequest) -> None:
    if "sessionid" in request.COOKIES and check_csrf(request) is not None:
        raise Problem(Kind.CSRF, "Send the cookie `csrftoken` again in the header X-CSRFToken.")
    if from_another_site(request):
        raise Problem(Kind.CSRF, "Sign in on the page itself: this request came from another site.")


def _proved(request: HttpRequest, username: str, password: str) -> User:
    """The account whose password, or one-time password, this is. Raises Problem: 401, or 429 after
    too many wrong ones."""
    attempt = gate.knock(username, client_address(request), one_time=password.startswith("otp_"))
    if attempt.wait_s is not None:
        signins.sign_in_held_back(username, attempt.wait_s)
        wait = {"Retry-After": str(math.ceil(attempt.wait_s))}
        raise Problem(Kind.TOO_MANY_REQUESTS, "Too many failed attempts; wait.", headers=wait)
    user = authenticate(request, username=username, password=password)
    if not isinstance(user, User):
        signins.sign_in_failed(username)
        raise Problem(Kind.BAD_CREDENTIALS, "The name or the password is wrong, or the one-time password was used.")
    gate.opened(attempt)
    return user


def _me(request: HttpRequest, principal: Principal) -> dict[str, object]:
    return {
        "username": principal.username,
        "roles": principal.scopes,
        "projects": {name: scope.value for name, scope in sorted(principal.rights().projects.items())},
        "demo": bool(settings.HOLDFAST_DEMO),
        "csrf": get_token(request),
    }


def _token(row: ApiToken) -> dict[str, object]:
    return {
        "id": row.id,
        "name": row.name,
        "owner": row.user.get_username(),
        "parent": row.parent_id,
        "scope": row.scope,
        "project": row.project,
        "created_at": iso(row.created_at),
        "expires_at": iso(row.expires_at),
        "last_used_at": iso(row.last_used_at),
        "revoked_at": iso(row.revoked_at),
    }
