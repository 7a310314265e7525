"""An administrator's orders about who the nodes are: keys, revocation, removal, join tokens."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router

from controlplane.access import join_tokens
from controlplane.access.models import JoinToken, Scope
from controlplane.api import bodies, etags, pages, records
from controlplane.api.auth import needs, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.idempotency import Effect, once
from controlplane.api.problems import Kind, Problem
from controlplane.fleet import enrolment
from controlplane.fleet.models import Node
from controlplane.protocol import rest
from controlplane.recovery import doubts
from controlplane.runtime.clock import iso
from controlplane.runtime.events import newest_seq
from controlplane.runtime.requests import request_id_of

router = Router(tags=["identity"], auth=needs(Scope.ADMIN))
Act = Callable[..., Node]
_ACT = describe(rest.Accepted, status=202, body=bodies.WithReason, errors=(404, 409, 412, 415, 422))


@router.post("/nodes/{rid:node_id}:revoke", summary="Revoke a node's key", openapi_extra=_ACT)
def revoke(request: HttpRequest, node_id: str) -> HttpResponse:
    """Its session ends within seconds and no new one begins; what runs there goes on unseen."""
    return _act(request, node_id, enrolment.revoke, "{} is shut out.")


@router.post("/nodes/{rid:node_id}:restore", summary="Take a revocation back", openapi_extra=_ACT)
def restore(request: HttpRequest, node_id: str) -> HttpResponse:
    """The same key counts again; its agent is back within a minute."""
    return _act(request, node_id, enrolment.restore, "{} may connect again.")


@router.post("/nodes/{rid:node_id}:rotate-key", summary="Have a node make a new key", openapi_extra=_ACT)
def rotate_key(request: HttpRequest, node_id: str) -> HttpResponse:
    """At once if it is connected, else when it is; the old key signs the new one."""
    return _act(request, node_id, enrolment.want_new_key, "{} is asked for a new key.")


@router.post("/nodes/{rid:node_id}:confirm", summary="Vouch for a quarantined node", openapi_extra=_ACT)
def confirm(request: HttpRequest, node_id: str) -> HttpResponse:
    """What speaks as this node now is the node: it may take work. Admits one that waits since it enrolled."""
    return _act(request, node_id, doubts.confirm, "{} may take work.")


@router.post("/nodes/{rid:node_id}:remove", summary="Remove a node", openapi_extra=_ACT)
def remove(request: HttpRequest, node_id: str) -> HttpResponse:
    """Its name is free again; refused while ranks are placed there."""
    return _act(request, node_id, enrolment.remove, "The node is removed; it was known as {}.")


@router.post(
    "/nodes/{rid:node_id}:re-enrol",
    summary="Let a node enrol with a new key",
    openapi_extra=describe(rest.JoinToken, status=201, body=bodies.ReEnrol, errors=(404, 415, 422)),
)
def re_enrol(request: HttpRequest, node_id: str) -> HttpResponse:
    """A join token for this node alone; `token` is in this answer and nowhere else."""
    body, actor = bodies.read(request, bodies.ReEnrol), principal_of(request).name
    shown = enrolment.reissue(
        node_id, actor=actor, reason=body.reason, ttl_s=body.ttl_s, request_id=request_id_of(request)
    )
    return _made(shown.id, shown.secret)


@router.get("/join-tokens", summary="List join tokens", openapi_extra=describe(list[rest.JoinToken], errors=(422,)))
def list_join_tokens(request: HttpRequest, query: Query[pages.Listing]) -> HttpResponse:
    """Without their secrets, which exist nowhere."""
    rows, after = pages.page(JoinToken.objects.all(), query, name="join-tokens")
    total = pages.counted(query, JoinToken.objects.all())
    return send(pages.listing([_token(row) for row in rows], after, newest_seq(), total=total))


@router.post(
    "/join-tokens",
    summary="Make a join token",
    openapi_extra=describe(rest.JoinToken, status=201, body=bodies.NewJoinToken, errors=(415, 422)),
)
def create_join_token(request: HttpRequest) -> HttpResponse:
    """Bound to a name, a pattern of names, a pool or networks; `token` is in this answer and nowhere else."""
    body, actor = bodies.read(request, bodies.NewJoinToken), principal_of(request).name
    binding = join_tokens.Binding(name=body.name, name_pattern=body.name_pattern, pool=body.pool, cidr=body.cidr)
    if not binding.binds:
        fix = "a node's name, a pattern such as gpu-a1-*, a pool, or networks such as 10.1.0.0/16"
        told = rest.FieldError("/name", "the token is bound to nobody: give name, name_pattern, pool or cidr", fix)
        raise Problem(Kind.INVALID, "The body is not valid.", errors=[told])
    # Not kept for replays: a secret must not rest in the table of stored answers.
    shown = join_tokens.create(
        binding,
        uses=body.uses,
        ttl_s=body.ttl_s,
        hold=body.hold,
        actor=actor,
        request_id=request_id_of(request),
    )
    return _made(shown.id, shown.secret)


@router.post(
    "/join-tokens/{rid:token_id}:revoke",
    summary="Revoke a join token",
    openapi_extra=describe(rest.Accepted, status=202, errors=(404, 409, 422)),
)
def revoke_join_token(request: HttpRequest, token_id: str) -> HttpResponse:
    """At once and for good; nodes that enrolled with it stay."""
    actor = principal_of(request).name

    def effect() -> Effect:
        if not JoinToken.objects.filter(pk=token_id).exists():
            raise Problem(Kind.NOT_FOUND, "There is no such join token.")
        revoked = join_tokens.revoke(token_id, actor=actor, request_id=request_id_of(request))
        return Effect(data={"detail": "Revoked." if revoked else "It was revoked before."})

    return once(request, effect)


def _act(request: HttpRequest, node_id: str, act: Act, sentence: str) -> HttpResponse:
    body, actor = bodies.read(request, bodies.WithReason), principal_of(request).name

    def effect() -> Effect:
        etags.check(request, lambda: records.held_node(node_id))
        node = act(node_id, reason=body.reason, actor=actor, request_id=request_id_of(request))
        return Effect(data={"detail": sentence.format(node.name)})

    return once(request, effect)


def _made(token_id: str, secret: str) -> HttpResponse:
    response = send(_token(JoinToken.objects.get(pk=token_id)) | {"token": secret}, 201)
    response["Location"] = f"/api/v1/join-tokens/{token_id}"
    return response


def _token(row: JoinToken) -> dict[str, object]:
    return {
        "id": row.id,
        "name": row.name,
        "name_pattern": row.name_pattern,
        "pool": row.pool,
        "cidr": row.cidr,
        "takeover": row.takeover,
        "hold": row.hold,
        "uses_left": row.uses_left,
        "created_by": row.created_by,
        "created_at": iso(row.created_at),
        "expires_at": iso(row.expires_at),
        "revoked_at": iso(row.revoked_at),
    }
