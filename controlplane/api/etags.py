"""Answers that a caller has already: ETag and If-None-Match.

A tag is weak: it covers what an answer says, not its bytes, as `as_of_seq` moves with every event of the fleet and a
proxy may compress what comes through it (nginx makes a strong tag weak when it does).
"""

import hashlib

from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers

TAG_CHARS = 32


def tag_of(content: bytes) -> str:
    """The tag of an answer that says this."""
    return f'W/"{hashlib.sha256(content).hexdigest()[:TAG_CHARS]}"'


def has(request: HttpRequest, tag: str) -> bool:
    """Whoever asks has the answer of this tag. Compared without strength, as RFC 9110 says of If-None-Match."""
    named = [part.strip() for part in request.headers.get("If-None-Match", "").split(",")]
    return "*" in named or _opaque(tag) in map(_opaque, named)


def unchanged(tag: str) -> HttpResponse:
    """304: what you have is what you would be sent."""
    return tagged(HttpResponse(status=304), tag)


def tagged(response: HttpResponse, tag: str) -> HttpResponse:
    """With its tag; to be kept by whoever asked alone, and asked for again before it is used."""
    response["ETag"] = tag
    response["Cache-Control"] = "private, no-cache"
    patch_vary_headers(response, ("Accept-Encoding",))
    return response


def _opaque(tag: str) -> str:
    return tag.removeprefix("W/")
