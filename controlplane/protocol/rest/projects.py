"""Projects: who is in them, what they may use, and what they use now."""

from controlplane.protocol.rest.base import Answer


class Project(Answer, frozen=True, kw_only=True):
    """`quota_gpus`: devices that are its own (null: it has no limit); of what others leave unused it takes at most
    `borrow_limit_gpus` more (null: as many as are free), and of its own others use at most `lend_limit_gpus` while it
    does not (null: all). `weight`: its part of what is lent, against other projects. No job of it has a higher priority
    than `max_priority`. `visibility`: private (members alone), visible (every account reads it) or open (every account
    may do in it what its scope says). `scope`: yours in it. Its jobs hold `in_use_gpus` now, of which `borrowed_gpus`
    are beyond its quota; `waiting_gpus` are what its `waiting_jobs` wait for; `live_jobs` have not ended."""

    name: str
    description: str
    quota_gpus: int | None
    borrow_limit_gpus: int | None
    lend_limit_gpus: int | None
    weight: int
    max_priority: int
    visibility: str
    created_at: str
    created_by: str
    scope: str
    in_use_gpus: int
    borrowed_gpus: int
    waiting_gpus: int
    waiting_jobs: int
    live_jobs: int


class Member(Answer, frozen=True, kw_only=True):
    """An account in a project. `role`: viewer, submitter, operator or admin; each includes the ones before it."""

    account: str
    role: str
    since: str


class ProjectDetail(Project, frozen=True, kw_only=True):
    """With its `members`, by name; the first 500 of `member_count`. `etag`: for If-Match."""

    members: list[Member]
    member_count: int
    as_of_seq: int
    etag: str = ""
