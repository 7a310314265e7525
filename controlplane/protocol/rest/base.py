"""Problems, identity and what every answer shares."""

from typing import Any, Literal

import msgspec

Json = dict[str, Any]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Base: tolerant to fields of a newer server."""


class FieldError(Answer, frozen=True):
    """One fault of a request: JSON Pointer, what, how to mend it."""

    pointer: str
    message: str
    fix: str = ""


class Problem(Answer, frozen=True, kw_only=True):
    """RFC 9457: every answer of 400 and above."""

    type: str
    title: str
    status: int
    detail: str
    instance: str = ""
    request_id: str = ""
    errors: list[FieldError] = []


class Me(Answer, frozen=True, kw_only=True):
    """Who is asking. `roles`: the scopes held in the fleet; `projects`: by name of each project that is seen, the scope
    in it. `csrf` goes into X-CSRFToken for writes with a session."""

    username: str
    roles: list[str]
    projects: dict[str, str]
    demo: bool
    csrf: str


class Version(Answer, frozen=True, kw_only=True):
    """Of the server."""

    version: str
    api: str


class Token(Answer, frozen=True, kw_only=True):
    """An API token of the account `owner`, made by the token `parent` (null: by a person); `token` itself is answered
    once, when it is made. `project`: good in that one alone; "": in all that its account sees."""

    id: str
    name: str
    owner: str
    parent: str | None
    scope: str
    project: str
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None
    token: str | None = None


class JoinToken(Answer, frozen=True, kw_only=True):
    """Lets agents enrol; bound to what is not empty of `name`, `name_pattern`, `pool`, `cidr`.
    `takeover`: the known node of that name may have another key. `hold`: nodes that enrol with it get
    no work until an administrator confirms them. `token` itself is answered once, when it is made."""

    id: str
    name: str
    pool: str
    cidr: str
    takeover: bool
    uses_left: int
    created_by: str
    created_at: str
    expires_at: str
    revoked_at: str | None
    name_pattern: str = ""
    hold: bool = False
    token: str | None = None


class AuditEntry(Answer, frozen=True, kw_only=True):
    """One act or refusal of `actor`, `who` in words (`user:ada (token nightly)`). `seq` and `hash` are null for the
    seconds until the row is sealed into the chain; `before` and `after`: the fields that a change of state touched."""

    id: int
    seq: int | None
    at: str
    actor: str
    who: str
    action: str
    subject: str
    reason: str
    origin: str
    request_id: str
    decision_id: str | None
    data: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    hash: str | None


class AuditLine(Answer, frozen=True, kw_only=True):
    """One line of the exported audit log: what is digested of a sealed row, and its digests (docs/access.md).
    `unreadable`: Holdfast did not write what is there, and only `id` and `seq` are known."""

    id: int
    seq: int | None
    at: str = ""
    actor: str = ""
    action: str = ""
    subject: str = ""
    reason: str = ""
    request_id: str = ""
    origin: str = ""
    decision_id: str = ""
    data: dict[str, Any] = {}
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    version: str = ""
    mac: str = ""
    prev_hash: str = ""
    hash: str = ""
    unreadable: bool = False


class Setting(Answer, frozen=True, kw_only=True):
    """One value that this installation runs with: `value` in `unit` ("": none), of a secret only whether it is set.
    `source`: the environment variable that set it, `default`, `computed` from others, or `built in`."""

    group: Literal["configuration", "access", "versions"]
    name: str
    value: str
    unit: str
    source: str


class AuditState(Answer, frozen=True, kw_only=True):
    """How much of the audit log is known to be whole. `verified`: `manage.py verify_audit` has run; then `at` that
    time it read `rows` rows up to the one numbered `seq` and found `broken` faults, `first_fault` among them. `rows`
    and `seq` null where it never ran. `newest_seq`: the newest row that is sealed; `unsealed` rows wait to be."""

    verified: bool
    whole: bool | None
    at: str | None
    rows: int | None
    seq: int | None
    broken: int
    first_fault: str
    newest_seq: int | None
    unsealed: int


class Accepted(Answer, frozen=True, kw_only=True):
    """An order was taken; its effect follows. `request`: the id of the request that it became, which tells
    what comes of it; `window`: of the window that was set, over its first node; `reservation`: of the one that was
    set."""

    detail: str
    window: str | None = None
    reservation: str | None = None
    decision_id: str | None = None
    request: str | None = None
    command_ids: list[str] = []


class Event(Answer, frozen=True, kw_only=True):
    """Something that happened; `seq` is gap-free and in commit order."""

    seq: int
    at: str
    kind: str
    sentence: str
    job_id: str | None = None
    job_seq: int | None = None
    node_id: str | None = None
    entity: str | None = None
    entity_id: str | None = None
    patch: Json | None = None
    data: Json | None = None


class Part(Answer, frozen=True, kw_only=True):
    """Whether one part of the control plane is well."""

    ok: bool
    detail: str
    beat_age_s: float | None = None


class Health(Answer, frozen=True, kw_only=True):
    """The control plane's own state. `dead_letters`: events of agents that could not be applied
    and wait for a replay. `metrics`: host:port of each process that serves its figures for
    Prometheus on a port of its own, by role. `mode`: how far the fleet's policy lets its rules go by themselves
    (observe, recommend, enforce), but for `rules_held`, which are held back further; jobs and projects narrow it."""

    database: Part
    redis: Part
    sentinel: Part
    worker: Part
    agents_connected: int
    agents_total: int
    outbox_pending: int
    outbox_oldest_s: float | None
    mode: str
    rules_held: int = 0
    dead_letters: int = 0
    metrics: dict[str, list[str]] = {}
