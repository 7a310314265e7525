"""Idempotency-Key on every POST: the same key and request is answered once.

The key's row is inserted in the transaction of the effect itself, so either both are
there or neither. A second request with the key waits on that row, then gets the first
answer again; one that cannot wait any longer gets 409. A failed request leaves no key:
its effect was undone, and trying again is right. Keys are kept for a day.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from django.db import IntegrityError, OperationalError, transaction
from django.http import HttpRequest, HttpResponse

from controlplane.access.models import IdempotencyKey
from controlplane.api.auth import principal_of
from controlplane.api.bodies import send
from controlplane.api.problems import Kind, Problem
from controlplane.runtime.events import unit_of_work
from controlplane.runtime.locks import retrying

HEADER = "Idempotency-Key"
MAX_KEY = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a POST answers: JSON `data` with `status`, and where the new thing is."""

    data: Any
    status: int = 202
    location: str = ""


class _Taken(Exception):
    """Another request holds the key."""


def once(request: HttpRequest, effect: Callable[[], Effect]) -> HttpResponse:
    """Run `effect` in one unit of work, at most once per key. Without a key: always."""
    key = request.headers.get(HEADER, "")
    if not key:
        return _respond(retrying(lambda: _in_unit(effect), request.path))
    if len(key) > MAX_KEY or not key.isprintable():
        raise Problem(Kind.BAD_REQUEST, f"{HEADER} is printable text of at most {MAX_KEY} characters.")
    principal, digest = principal_of(request).name, _digest(request)
    try:
        return _respond(retrying(lambda: _keyed(principal, key, digest, effect), request.path))
    except _Taken:
        return _replay(principal, key, digest)
    except OperationalError as error:
        if IdempotencyKey.objects.filter(principal=principal, key=key).exists():
            return _replay(principal, key, digest)
        raise Problem(Kind.STILL_RUNNING, "Ask again in a moment.", headers={"Retry-After": "1"}) from error


def _in_unit(effect: Callable[[], Effect]) -> Effect:
    with unit_of_work():
        return effect()


def _keyed(principal: str, key: str, digest: str, effect: Callable[[], Effect]) -> Effect:
    with unit_of_work():
        try:
            with transaction.atomic():
                row = IdempotencyKey.objects.create(principal=principal, key=key, body_sha256=digest)
        except IntegrityError as error:
            raise _Taken from error
        done = effect()
        row.status, row.location = done.status, done.location
        row.answer = msgspec.json.encode(done.data).decode()
        row.save(update_fields=["status", "location", "answer"])
        return done


def _replay(principal: str, key: str, digest: str) -> HttpResponse:
    row = IdempotencyKey.objects.filter(principal=principal, key=key).first()
    if row is None or row.status is None:
        raise Problem(Kind.STILL_RUNNING, "Ask again in a moment.", headers={"Retry-After": "1"})
    if row.body_sha256 != digest:
        raise Problem(Kind.KEY_REUSED, "Use a new key for a new request.")
    response = HttpResponse(row.answer, status=row.status, content_type="application/json")
    response["Idempotent-Replayed"] = "true"
    if row.location:
        response["Location"] = row.location
    return response


def _respond(done: Effect) -> HttpResponse:
    response = send(done.data, done.status)
    if done.location:
        response["Location"] = done.location
    return response


def _digest(request: HttpRequest) -> str:
    head = f"{request.method} {request.get_full_path()}\n{request.content_type}\n".encode()
    return hashlib.sha256(head + request.body).hexdigest()
