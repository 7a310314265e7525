"""Where the seconds of devices went."""

from controlplane.protocol.rest.base import Answer
from controlplane.protocol.rest.words import CauseKind, TimeClass


class LedgerClass(Answer, frozen=True, kw_only=True):
    """GPU-seconds of one class; `share` of all that is known in the window; `money` at the price that is set (null:
    none is)."""

    of: TimeClass
    gpu_s: float
    share: float
    money: float | None


class LedgerRow(Answer, frozen=True, kw_only=True):
    """One class, cause, job or node. `kind` of a cause; `id` of an incident, decision, job or node, or a reason in
    words; `label` as people call it. `classes`: GPU-seconds by class. Of a job, else null: what it `queued` for beside
    the ledger (devices it asked for and did not hold x time), and its effective time in the window (`ettr`)."""

    id: str
    kind: CauseKind
    label: str
    gpu_s: float
    share: float
    money: float | None
    classes: dict[str, float]
    queued_gpu_s: float | None
    ettr: float | None


class LedgerFailures(Answer, frozen=True, kw_only=True):
    """Incidents of jobs that began with a fault in the window: so many `failures` in `up_s` seconds of training of all
    jobs together. Mean time to failure, from the fault until it was `detected` and until training was back
    (`recovered`), in seconds; null: not observed."""

    failures: int
    up_s: float
    detected: int
    recovered: int
    mttf_s: float | None
    mttd_s: float | None
    mttr_s: float | None


class Ledger(Answer, frozen=True, kw_only=True):
    """Every second of every device between `since` and `until` in exactly one class: `classes` sum to `known_gpu_s`,
    and so do all `rows` (the largest are there, `left_out` are not). Nothing later than `judged_until` is judged yet
    (null: nothing was), nothing from before `known_since` is known. `restated_gpu_s`: in stretches that a late fact
    changed after they were first shown. `queued_gpu_s` is demand beside the ledger. `ettr`: productive GPU-seconds over
    full strength x time since the first attempt of all jobs (null: none has a figure). `failures` of jobs (null: of one
    node, as failures are of jobs). `price` of a GPU-hour in
    `currency`; null: not set. A rest of some class below 0: the undisturbed step was taken a little too long."""

    since: str
    until: str
    judged_until: str | None
    known_since: str | None
    by: str
    known_gpu_s: float
    restated_gpu_s: float
    queued_gpu_s: float
    ettr: float | None
    failures: LedgerFailures | None
    price: float | None
    currency: str | None
    classes: list[LedgerClass]
    rows: list[LedgerRow]
    left_out: int
    as_of_seq: int
