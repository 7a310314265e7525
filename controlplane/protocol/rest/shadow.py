"""A policy that runs beside the live one."""

from controlplane.protocol.rest.base import Answer, Json


class ShadowBar(Answer, frozen=True, kw_only=True):
    """What a promotion asks for: so many decisions over so many days; of those that differ at most the share
    `max_unpriced` without a price; its change, with its error, at most the share `tolerance` of what the incidents
    cost."""

    min_decisions: int
    min_days: float
    max_unpriced: float
    tolerance: float


class ShadowScore(Answer, frozen=True, kw_only=True):
    """Of the `decisions` that were compared over `days`, `differing` come out otherwise or rest on other thresholds:
    `continued` in the simulator, `expected` by their own prices, `unpriced`. `change_gpu_s`: what it would have wasted
    more over so many `incidents` that come out otherwise, known to `error_gpu_s` either way; all that were compared
    cost `live_gpu_s`, as far as that is known.
    Of a watch the change is that of the policy before."""

    decisions: int
    days: float
    differing: int
    continued: int
    expected: int
    unpriced: int
    incidents: int
    live_gpu_s: float
    change_gpu_s: float
    error_gpu_s: float


class ShadowAgreement(Answer, frozen=True, kw_only=True):
    """Decisions of one rule: the same act, the same for other thresholds or prices, another one, an act where the live
    policy held, none where it acted."""

    rule: str
    alike: int
    reworded: int
    other: int
    acts: int
    holds: int


class ShadowDecision(Answer, frozen=True, kw_only=True):
    """A recorded decision that comes out otherwise. `priced_by`: continued, expected or "" (`why` not); `live_gpu_s`:
    what its incident really cost (null: it is not over, or it is of none)."""

    decision_id: str
    job_id: str | None
    incident_id: str | None
    at: str
    rule: str
    agreement: str
    live_choice: str
    other_choice: str
    priced_by: str
    live_gpu_s: float | None
    change_gpu_s: float | None
    spread_gpu_s: float
    why: str


class Shadow(Answer, frozen=True, kw_only=True):
    """A document that decides beside the live policy without acting (`role` candidate), or that of before a promotion
    (watch). `state`: running, promoted, stopped, fell_back, kept or superseded, since `ended_at` and `ended_why`.
    `live_number`: the version in force when it began. `below`: why it may not be promoted ([]: it may). `waiting`:
    decisions whose price is still to come; `newest`: the newest that differ, 100 at most."""

    run: int
    role: str
    state: str
    document: Json
    text: str
    version: str
    live_number: int
    who: str
    reason: str
    started_at: str
    ended_at: str | None
    ended_why: str
    bar: ShadowBar
    score: ShadowScore
    below: list[str]
    matrix: list[ShadowAgreement]
    waiting: int
    newest: list[ShadowDecision]


class CurrentShadow(Answer, frozen=True, kw_only=True):
    """The one that was asked for; null: no policy has run beside the live one yet."""

    shadow: Shadow | None
