"""Policy documents, and what decisions would have been by others."""

from controlplane.protocol.rest.base import Answer, Json

Scalar = str | int | float | None


class PolicyField(Answer, frozen=True, kw_only=True):
    """One setting. `value` in force here, `set_by`: default, fleet, project or job; `least` and `most` that a document
    may say, in `unit`. `source` of the default (own value, measured, source) and `because` of what. `safer`: the
    direction in which a project's or job's policy may move it; "": it is the fleet's alone."""

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
    """The policy of the fleet, of a `project`, or of a job (`job_id`) in its project. `number` of the newest document
    (0: none, all is as above it), which is `document`, and `text` as YAML. `version`: what decisions by it carry.
    `rules` that obey a mode; `modes` and `xids` in force. `etag`: for If-Match."""

    project: str | None
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
    etag: str = ""


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


class XidRule(Answer, frozen=True, kw_only=True):
    """One XID (`mnemonic`: the driver's name of it), in the words of each source, "" where it has none: of NVIDIA its
    immediate action, of `gpud` severity and actions, of `aws` its severity. `standard`: the action without the site's
    word, and `because` of whom; `site`: the action that the site's policy sets, ""; `action`: what holds now. Where two
    sources cannot both be right, `disagreements` says who says what."""

    xid: int
    mnemonic: str
    what: str
    nvidia: str
    gpud: str
    aws: str
    aws_note: str
    standard: str
    because: str
    site: str
    action: str
    disagreements: list[str]


class XidTable(Answer, frozen=True, kw_only=True):
    """Every XID of the catalogue, and each other that the site's policy names; and where each source's word is from."""

    items: list[XidRule]
    sources: dict[str, str]
    as_of_seq: int


class PolicyDiff(Answer, frozen=True, kw_only=True):
    """What differs in force between two numbers of a document; 0: the defaults."""

    before: int
    after: int
    changes: list[PolicyChange]


class ReplayedDecision(Answer, frozen=True, kw_only=True):
    """What was decided, or would be. `cost_gpu_s`: GPU-seconds that its rule expected it to cost; null: no price."""

    rule: str
    choice: str
    mode: str
    sentence: str
    cost_gpu_s: float | None


class ReplayCase(Answer, frozen=True, kw_only=True):
    """What the simulator needs to go on from a recorded decision: of a job at full strength so many `replicas` of
    `ranks` devices each, what has `failed` (by replica: crash, hang or silent, for `silent_s` so far), places for
    further replicas (null: not recorded), and the job's times in seconds (`measured` False: in part the policy's own
    defaults). `gap_steps` since the newest checkpoint, `interval_steps` between two. It comes to the decision `choice`
    of `rule`; the other policy decides `then_choice` of `then_rule` there ("": nothing)."""

    rule: str
    choice: str
    then_rule: str
    then_choice: str
    failed: dict[str, str]
    silent_s: float
    replicas: int
    ranks: int
    places: int | None
    spares_kept: bool
    needed: int
    share: int
    step_s: float
    start_s: float
    catch_up_s: float
    measured: bool
    gap_steps: int
    interval_steps: int
    steps_left: int
    budget_spent: bool
    fleet_devices: int
    acts: int


class ReplayDifference(Answer, frozen=True, kw_only=True):
    """A decision that comes out otherwise. `kind`: differs (by its own policy: `fields` are not the same), or by a
    candidate held, freed, instead, changed, dropped, or added, which the pass of `decision_id` did not decide; `key`
    names it in its job. `before` is what was recorded, `after` what comes of it now; null: nothing. `assumed`: the
    candidate asked for more of the fleet than was recorded, and is taken to have been told that nothing more is free.
    `case`: from which both can be continued in the simulator, by the policies `own` and `other` (null: `no_case` says
    why not)."""

    decision_id: str
    job_id: str | None
    job_name: str | None
    at: str
    kind: str
    key: str
    fields: list[str]
    before: ReplayedDecision | None
    after: ReplayedDecision | None
    assumed: bool = False
    case: ReplayCase | None = None
    no_case: str = ""
    incident_id: str | None = None
    own: str = ""
    other: str = ""


class PolicyReplay(Answer, frozen=True, kw_only=True):
    """One page of the journal made again: `replayed` decisions, `equal` of which came out byte for byte the same;
    `left_out` by reason. `changes`: what the candidate changes in what is in force. `policies` that cases are continued
    by, each whole as JSON by its version. `next`: where the next page begins; null: this was the last."""

    replayed: int
    equal: int
    differences: list[ReplayDifference]
    left_out: dict[str, int]
    changes: list[PolicyChange]
    policies: dict[str, str]
    next: str | None


class RecordedPolicy(Answer, frozen=True, kw_only=True):
    """The whole policy behind the version that a decision carries, as what differs from this release's defaults.
    `numbers`: the fleet's documents that made it."""

    version: str
    changes: list[PolicyChange]
    numbers: list[int]
