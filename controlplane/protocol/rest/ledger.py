"""Where the seconds of devices went."""

from typing import Literal

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


class BillLine(Answer, frozen=True, kw_only=True):
    """GPU-seconds of one class of the ledger, apart by whether an `incident` is what they are due to, and what they
    cost: 0 where they are not `charged` (null: there is no price)."""

    of: TimeClass
    incident: bool
    charged: bool
    gpu_s: float
    money: float | None


class BillJob(Answer, frozen=True, kw_only=True):
    """One job's part of a bill."""

    id: str
    name: str
    charged_gpu_s: float
    money: float | None
    not_charged_gpu_s: float


class Restated(Answer, frozen=True, kw_only=True):
    """What the ledger says now beyond what was charged when the month was closed; below 0: less."""

    gpu_s: float
    money: float | None


class Bill(Answer, frozen=True, kw_only=True):
    """What a project pays for a `month` in UTC. `state`: open, as the ledger has it up to `judged_until`, or closed at
    `closed_at` and not changed since. All `lines` together are what the project's jobs held in that month, as the
    ledger has it; those that are charged sum to `charged_gpu_s`. `jobs`: the same by job, the largest first;
    `jobs_left_out` are not there, with `left_out_gpu_s` that are charged. `restated` stands beside a closed month
    (null: nothing to restate, or the ledger does not keep all of it any more)."""

    project: str
    month: str
    since: str
    until: str
    state: Literal["open", "closed"]
    closed_at: str | None
    judged_until: str | None
    price: float | None
    currency: str | None
    charged_gpu_s: float
    charged_money: float | None
    not_charged_gpu_s: float
    lines: list[BillLine]
    jobs: list[BillJob]
    jobs_left_out: int
    left_out_gpu_s: float
    restated: Restated | None
    as_of_seq: int


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
