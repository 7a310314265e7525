"""Request bodies: JSON into a type of this file, or a 422 that points at the fault."""

import re
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from django.http import HttpRequest, HttpResponse
from msgspec import UNSET, Meta, UnsetType, inspect

from controlplane.api.problems import Kind, Problem
from controlplane.policy.shadow import Bar
from controlplane.protocol import rank_commands
from controlplane.protocol.plain import first_fault, without_secrets
from controlplane.protocol.rest import FieldError

Reason = Annotated[str, Meta(min_length=1, max_length=500, description="Why; kept in the audit log.")]
Index = Annotated[int, Meta(ge=0, le=1_000_000)]
Name = Annotated[str, Meta(min_length=1, max_length=150)]

B = TypeVar("B", bound="Body")


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base: unknown fields are refused, not ignored."""


class Login(Body, frozen=True, kw_only=True):
    """`password` may be a one-time password."""

    username: Name
    password: Annotated[str, Meta(min_length=1, max_length=1000)]


class NewPassword(Body, frozen=True, kw_only=True):
    """`current`: the password so far, or a one-time password; `password`: the one from now on."""

    username: Name
    current: Annotated[str, Meta(min_length=1, max_length=1000)]
    password: Annotated[str, Meta(min_length=1, max_length=1000)]


class WithReason(Body, frozen=True, kw_only=True):
    """An action of a person says why."""

    reason: Reason


class ActOfJob(WithReason, frozen=True, kw_only=True):
    """`expected_attempt`: refused where the job's newest attempt is another one; 0: it has none yet."""

    expected_attempt: Index | None = None


class PoolSize(Body, frozen=True, kw_only=True):
    """How many pilots of a pool are to run at a time, and why."""

    size: Annotated[int, Meta(ge=1, le=1000)]
    reason: Reason


class WindowOfNode(Body, frozen=True, kw_only=True):
    """When a node is away, as ISO-8601 with a time zone, and why."""

    starts_at: Annotated[datetime, Meta(tz=True)]
    ends_at: Annotated[datetime, Meta(tz=True)]
    reason: Reason


class Maintenance(WindowOfNode, frozen=True, kw_only=True):
    """Over these nodes, by id; or over those in a `segment`."""

    nodes: Annotated[tuple[Annotated[str, Meta(max_length=32)], ...], Meta(max_length=1000)] = ()
    segment: Annotated[str, Meta(max_length=63)] = ""


class NewReservation(Maintenance, frozen=True, kw_only=True):
    """Which nodes are the project's own, from when until when."""

    project: Annotated[str, Meta(min_length=1, max_length=63)]


class EvictReplica(ActOfJob, frozen=True, kw_only=True):
    """Which replica slot, and why."""

    replica: Index


class FaultRank(ActOfJob, frozen=True, kw_only=True):
    """Which rank, which fault (`protocol.rank_faults`), and why."""

    replica: Index
    rank: Index
    fault: Annotated[str, Meta(max_length=24)]
    value: Annotated[float, Meta(ge=0.0, le=86400.0)] = 0.0


class DebugRank(ActOfJob, frozen=True, kw_only=True):
    """Which rank, which diagnostic (`protocol.diagnostics`), and why; `duration_s` of a profile."""

    replica: Index
    rank: Index
    diagnostic: Annotated[str, Meta(max_length=24)]
    duration_s: Annotated[float, Meta(ge=0.1, le=10.0)] | None = None


class CommandRank(ActOfJob, frozen=True, kw_only=True):
    """Which rank, what it is to do, by its name and with its fields, and why."""

    replica: Index
    rank: Index
    command: rank_commands.RankCommand


class NewToken(Body, frozen=True, kw_only=True):
    """`expires_in_s` None: it does not expire. `project`: good in that project alone; "": wherever the account is."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    scope: str = "read"
    project: Annotated[str, Meta(max_length=63)] = ""
    expires_in_s: Annotated[float, Meta(ge=60, le=10 * 365 * 86400)] | None = None


Gpus = Annotated[int, Meta(ge=0, le=1_000_000)]


class ProjectSettings(Body, frozen=True, kw_only=True):
    """What is left out stays as it is; of a new project it is the default."""

    description: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET
    quota_gpus: Gpus | UnsetType | None = UNSET
    borrow_limit_gpus: Gpus | UnsetType | None = UNSET
    lend_limit_gpus: Gpus | UnsetType | None = UNSET
    weight: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    max_priority: Annotated[int, Meta(ge=0, le=1000)] | UnsetType = UNSET
    visibility: Literal["private", "visible", "open"] | UnsetType = UNSET


class NewProject(ProjectSettings, frozen=True, kw_only=True):
    """`name`: 1 to 63 of a-z, 0-9 and '-', starting with a letter and not ending with '-'."""

    name: Annotated[str, Meta(min_length=1, max_length=63)]
    reason: Reason


class SetProject(ProjectSettings, frozen=True, kw_only=True):
    """Which of its settings get another value, and why."""

    reason: Reason


class SetMember(Body, frozen=True, kw_only=True):
    """Which account, what it is in the project, and why."""

    account: Name
    role: Literal["viewer", "submitter", "operator", "admin"]
    reason: Reason


class RemoveMember(Body, frozen=True, kw_only=True):
    """Which account, and why."""

    account: Name
    reason: Reason


class NewJoinToken(Body, frozen=True, kw_only=True):
    """Who may enrol with it: at least one of `name` or `name_pattern` (such as gpu-a1-*), `pool` and
    `cidr` (networks, by commas). `hold`: nodes that enrol with it wait for an administrator."""

    name: Annotated[str, Meta(max_length=100)] = ""
    name_pattern: Annotated[str, Meta(max_length=100)] = ""
    pool: Annotated[str, Meta(max_length=63)] = ""
    cidr: Annotated[str, Meta(max_length=500)] = ""
    uses: Annotated[int, Meta(ge=1, le=10_000)] = 1
    hold: bool = False
    ttl_s: Annotated[float, Meta(ge=10, le=7 * 86400)] = 3600.0


class ReEnrol(Body, frozen=True, kw_only=True):
    """Why the node gets a new key, and for how long its join token is good."""

    reason: Reason
    ttl_s: Annotated[float, Meta(ge=10, le=7 * 86400)] = 3600.0


class NewPolicy(Body, frozen=True, kw_only=True):
    """A policy document as YAML or JSON `text`. `parent`: the newest version that its author knows, 0 where there is
    none; not needed beside If-Match. `job_id`: of this job, `project`: of this project; neither: the fleet's."""

    text: Annotated[str, Meta(max_length=100_000)]
    parent: Index | None = None
    reason: Reason
    job_id: Annotated[str, Meta(max_length=64)] = ""
    project: Annotated[str, Meta(max_length=63)] = ""


class PolicyRollback(Body, frozen=True, kw_only=True):
    """Which version comes back (0: the defaults); the rest as in `NewPolicy`."""

    to: Index
    parent: Index | None = None
    reason: Reason
    job_id: Annotated[str, Meta(max_length=64)] = ""
    project: Annotated[str, Meta(max_length=63)] = ""


class ReplayPolicy(Body, frozen=True, kw_only=True):
    """The decisions of the last `since_s` seconds, from `cursor` on, at most `limit` of a page. `text`: by this
    document of the fleet, of a `project` or of a job (`job_id`); null: each by its own policy, of this job, of the
    project's jobs or of all."""

    since_s: Annotated[float, Meta(gt=0, le=366 * 86400)]
    text: Annotated[str, Meta(max_length=100_000)] | None = None
    job_id: Annotated[str, Meta(max_length=64)] = ""
    project: Annotated[str, Meta(max_length=63)] = ""
    cursor: Annotated[str, Meta(max_length=200)] = ""
    limit: Annotated[int, Meta(ge=1, le=2000)] = 500


class NewShadow(Body, frozen=True, kw_only=True):
    """A policy document of the fleet as YAML or JSON `text`, to decide beside the live one, and the `bar` that its
    promotion asks for."""

    text: Annotated[str, Meta(max_length=100_000)]
    reason: Reason
    bar: Bar = Bar()


class PromoteShadow(Body, frozen=True, kw_only=True):
    """The number of the run, and the newest version that its author knows (0: there is none)."""

    run: Index
    parent: Index
    reason: Reason


class StopShadow(Body, frozen=True, kw_only=True):
    """The number of the run."""

    run: Index
    reason: Reason


class NewFault(Body, frozen=True, kw_only=True):
    """A demo fault; which fields a kind needs is in GET /demo/faults. `value`: within what every order
    to an agent may carry."""

    kind: Annotated[str, Meta(max_length=40)]
    job_id: Annotated[str, Meta(max_length=32)] | None = None
    replica: Index | None = None
    rank: Index | None = None
    node_id: Annotated[str, Meta(max_length=32)] | None = None
    device_index: Index | None = None
    value: Annotated[float, Meta(ge=0.0, le=1e6)] | Annotated[str, Meta(max_length=40)] | None = None


def read(request: HttpRequest, kind: type[B]) -> B:
    """Decode the body. Raises Problem: 415, 400 for no JSON, 422 for a faulty one."""
    # Any other type, or none, is what another site's form or script can send without asking first.
    if request.content_type != "application/json" and request.body:
        raise Problem(
            Kind.UNSUPPORTED_MEDIA_TYPE,
            f"Send application/json, not {request.content_type or 'a body without a type'}.",
        )
    try:
        body = msgspec.json.decode(request.body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise Problem(Kind.INVALID, "The body is not valid.", errors=[told(error, kind)]) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(Kind.BAD_REQUEST, "The body is not JSON.") from error
    plain = msgspec.to_builtins(body)
    fault = first_fault(plain)
    reason = str(plain.get("reason", ""))
    if fault is None and without_secrets(reason) != reason:
        fault = ("/reason", "it has a credential in it, which everybody could read; revoke that one")
    if fault is not None:
        raise Problem(Kind.INVALID, "The body is not valid.", errors=[FieldError(*fault)])
    return body


def told(error: msgspec.ValidationError, kind: type[Body]) -> FieldError:
    """msgspec's "... - at `$.a[0]`" as message and JSON Pointer, with the words that the field takes."""
    message, _, path = str(error).partition(" - at `$")
    pointer = re.sub(r"\[(\w+|\.\.\.)\]", r".\1", path.rstrip("`")).replace(".", "/")
    missing = re.search(r"field `(\w+)`", message)
    if missing:
        pointer += "/" + missing.group(1)
    words = _words(inspect.type_info(kind), pointer.split("/")[1:])
    return FieldError(pointer, message, f"use {', '.join(words)}") if words else FieldError(pointer, message)


def _words(kind: inspect.Type, path: list[str]) -> list[str]:
    """What a field of this type may say, or the one at `path` in it, where it is one of few words."""
    match kind:
        case inspect.Metadata(type=inner):
            return _words(inner, path)
        case inspect.UnionType(types=types):
            return [word for one in types for word in _words(one, path)]
        case inspect.StructType() if path and path[0] == kind.tag_field:
            return [str(kind.tag)]
        case inspect.StructType() if path:
            found = next((field.type for field in kind.fields if field.encode_name == path[0]), None)
            return [] if found is None else _words(found, path[1:])
        case inspect.LiteralType(values=values) if not path:
            return [str(value) for value in values]
        case _:
            return []


def send(data: Any, status: int = 200, *, compress: bool = True) -> HttpResponse:
    """JSON, encoded once, without a second validation. A list's rows are compressed on their way (`compressed`), unless
    they may hold secrets."""
    response = HttpResponse(msgspec.json.encode(data), status=status, content_type="application/json")
    response.holdfast_rows = compress and isinstance(data, dict) and "items" in data  # type: ignore[attr-defined]
    return response
