"""Answers that a caller has already, and changes to what a caller has read: ETag, If-None-Match, If-Match (RFC 9110).

The tag of one object is strong and has two parts, `"RECORD.REST"`. RECORD stands for what is recorded of it and decides
what may be done to it (`Record`: its state, its settings, who is in it), REST for all else that the answer says, ages
and readings too. A GET compares the whole; an action of the object compares RECORD alone, since the present state of
the address `...:verb` is the record: a job that has only trained on is not another one. Neither covers `as_of_seq`,
which is the moment of the answer and moves with every event of the fleet.

The tag of a large answer as columns is weak: it is only read.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers

from controlplane.api.bodies import send
from controlplane.api.problems import Kind, Problem
from controlplane.protocol.rest import FieldError

TAG_CHARS = 32
RECORD_CHARS = 20
FIELD_CHARS = 3
"""Of each field of a record: enough to say, most times, which one has changed; the record's own digest says whether."""
_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_LIST = re.compile(rf"\s*(?:{_TAG.pattern}\s*(?:,\s*|$))+")
PROXY = "A proxy has made the tag weak (W/), as some do when they compress: have it leave answers of the API alone."
AGAIN = "Read it again, and send its new ETag if you still want this."


class Record(NamedTuple):
    """What is compared before an object is changed. `called`: for people, "The job tiny"; `values` by the names of its
    fields, JSON."""

    called: str
    values: Mapping[str, Any]

    @property
    def tag(self) -> str:
        """The first part of its tag: a digest of all, and a short one of each field in turn."""
        parts = "".join(_digest(value, FIELD_CHARS) for value in self.values.values())
        return f"{_digest(list(self.values.items()), RECORD_CHARS)}-{parts}"

    def changed_since(self, tag: str) -> list[str]:
        """Names of the fields that differ from the record of this tag; [] where that cannot be told."""
        parts = tag.partition("-")[2]
        if len(parts) != FIELD_CHARS * len(self.values):
            return []
        then = [parts[at : at + FIELD_CHARS] for at in range(0, len(parts), FIELD_CHARS)]
        now = [_digest(value, FIELD_CHARS) for value in self.values.values()]
        return [name for name, one, other in zip(self.values, then, now, strict=True) if one != other]


def answer(
    request: HttpRequest, record: Record, data: dict[str, Any], as_of_seq: int, *, kept: bool = False
) -> HttpResponse:
    """One object with its tag, in the header and as `etag`; 304 to whoever has it. `kept`: browsers may keep it, and
    ask before they use it. Raises Problem (412) for an If-Match of another state."""
    tag = f'"{record.tag}.{_digest(data, RECORD_CHARS)}"'
    given = request.headers.get("If-Match")
    if given is not None and "*" not in (tags := _listed(given, "If-Match")) and tag not in tags:
        raise _stale(record, tags, tag)
    sent = data | {"etag": tag, "as_of_seq": as_of_seq}
    response = HttpResponse(status=304) if has(request, tag) else send(sent)
    if kept:
        return tagged(response, tag)
    response["ETag"] = tag
    return response


def check(request: HttpRequest, held: Callable[[], Record]) -> None:
    """Whether an object is as whoever asks has read it, where he asks for that; `held` locks its row. Raises Problem:
    412 where it is not, 400 for an If-Match that is none."""
    given = request.headers.get("If-Match")
    if given is None:
        return
    tags, record = _listed(given, "If-Match"), held()
    # Compared strongly, as RFC 9110 says of If-Match: a weak tag is equal to none.
    strong = {tag[1:-1].partition(".")[0] for tag in tags if tag.startswith('"')}
    if "*" not in tags and record.tag not in strong:
        raise _stale(record, tags, f'"{record.tag}"')


def tag_of(content: bytes) -> str:
    """The weak tag of an answer that says this."""
    return f'W/"{hashlib.sha256(content).hexdigest()[:TAG_CHARS]}"'


def has(request: HttpRequest, tag: str) -> bool:
    """Whoever asks has the answer of this tag. Compared weakly, as RFC 9110 says of If-None-Match."""
    header = request.headers.get("If-None-Match", "")
    named = {found[1] for found in _TAG.findall(header)}
    return header.strip() == "*" or tag.removeprefix("W/")[1:-1] in named


def unchanged(tag: str) -> HttpResponse:
    """304: what you have is what you would be sent."""
    return tagged(HttpResponse(status=304), tag)


def tagged(response: HttpResponse, tag: str) -> HttpResponse:
    """With its tag; to be kept by whoever asked alone, and asked for again before it is used."""
    response["ETag"] = tag
    response["Cache-Control"] = "private, no-cache"
    patch_vary_headers(response, ("Accept-Encoding",))
    return response


def _listed(header: str, name: str) -> set[str]:
    """The tags of a header, as they stand in it, or `*`. Raises Problem (400)."""
    text = header.strip()
    if text == "*":
        return {"*"}
    if _LIST.fullmatch(text + ","):
        return {f'{weak}"{opaque}"' for weak, opaque in _TAG.findall(text)}
    raise Problem(Kind.BAD_REQUEST, f'{name} is `*` or tags in quotes, as the header ETag has them: "a", "b".')


def _stale(record: Record, tags: set[str], now: str) -> Problem:
    """What has changed since, and how to go on."""
    if all(tag.startswith("W/") for tag in tags):
        detail = f"{record.called} was not compared: If-Match takes strong tags alone. {PROXY}"
        return Problem(Kind.PRECONDITION_FAILED, detail, headers={"ETag": now})
    names = [name for tag in sorted(tags) for name in record.changed_since(tag.strip('"').partition(".")[0])]
    faults = [FieldError(f"/{name}", f"is {_short(record.values[name])} now") for name in dict.fromkeys(names)]
    what = f": {', '.join(dict.fromkeys(names))}" if names else ""
    detail = f"{record.called} has changed since you read it{what}. {AGAIN}"
    return Problem(Kind.PRECONDITION_FAILED, detail, errors=faults, headers={"ETag": now})


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 100 else f"{text[:97]}..."


def _digest(value: Any, chars: int) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:chars]
