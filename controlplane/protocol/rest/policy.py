"""Policy documents, and what decisions would have been by others."""

from controlplane.protocol.rest.base import Answer, Json

Scalar = str | int | float | None


class PolicyField(Answer, frozen=True, kw_only=True):
    """One setting. `value` in force here, `set_by`: default, fleet or job; `least` and `most` that a document may say,
    in `unit`. `source` of the default (own value, measured, source) and `because` of what. `safer`: the direction in
    which a job's policy may move it; "": it is the fleet's alone."""

    name: str
    group: str
    what: str
    unit: str
    value: float
    default: float
    set_by: str
    least: float
    most: float
    source: str
    because: str
    safer: str


class PolicyMeasure(Answer, frozen=True, kw_only=True):
    """What was measured here of a thing that `field` bounds, in seconds; nothing below `p99_s` is accepted for it."""

    field: str
    what: str
    p99_s: float
    samples: int


class Policy(Answer, frozen=True, kw_only=True):
    """The policy of the fleet (`job_id` null) or of a job. `number` of the newest document (0: none, all is by
    default), which is `document`, and `text` as YAML. `version`: what decisions by it carry. `rules` that obey a mode;
    `modes` and `xids` in force."""

    job_id: str | None
    job_name: str | None
    number: int
    version: str
    document: Json
    text: str
    fields: list[PolicyField]
    modes: dict[str, str]
    xids: dict[str, str]
    rules: list[str]
    measured: list[PolicyMeasure]


class PolicyVersion(Answer, frozen=True, kw_only=True):
    """A stored document: the one of number `parent` was replaced (0: the defaults) by `who`, for `reason`. `restores`:
    the number that it brought back; null: it was new."""

    number: int
    parent: int
    restores: int | None
    at: str
    who: str
    reason: str
    version: str
    document: Json
    text: str


class PolicyChange(Answer, frozen=True, kw_only=True):
    """`field` or `table.row`; null: it is not in that table."""

    field: str
    before: Scalar
    after: Scalar


class PolicyDiff(Answer, frozen=True, kw_only=True):
    """What differs in force between two numbers of a document; 0: the defaults."""

    before: int
    after: int
    changes: list[PolicyChange]


class RecordedPolicy(Answer, frozen=True, kw_only=True):
    """The whole policy behind the version that a decision carries, as what differs from this release's defaults.
    `numbers`: the fleet's documents that made it."""

    version: str
    changes: list[PolicyChange]
    numbers: list[int]
