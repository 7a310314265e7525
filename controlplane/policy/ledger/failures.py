"""How often jobs fail, how soon that is found, and how soon training is back: from the ledger's time and the incidents.

Pure; called by `recovery.ledger_failures`. A failure is an incident of a job that begins with a fault: what a person
ordered is none. Its times are those of its phases. The time between failures is time in which jobs trained: what a job
waits, starts or recovers in is not counted, so that slow recoveries do not look like seldom failures.
"""

from collections.abc import Iterable, Mapping

import msgspec

from controlplane.policy.ledger.account import Account, Key
from controlplane.protocol.ledger import TimeClass
from controlplane.protocol.rest.ledger import LedgerFailures

TRAINED = frozenset({TimeClass.PRODUCTIVE, TimeClass.DEGRADED, TimeClass.CHECKPOINT, TimeClass.LOST_WORK})
"""Steps were made, also those that a restart took back later."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One, with seconds from its fault until it was detected and until training was back, whole or with fewer replicas;
    None: it was not, or nobody saw when."""

    detected_s: float | None
    recovered_s: float | None


def failures_of(found: Iterable[Failure], up_s: float) -> LedgerFailures:
    """The means."""
    every = list(found)
    detected = [each.detected_s for each in every if each.detected_s is not None]
    recovered = [each.recovered_s for each in every if each.recovered_s is not None]
    return LedgerFailures(
        failures=len(every),
        up_s=up_s,
        detected=len(detected),
        recovered=len(recovered),
        mttf_s=up_s / len(every) if every else None,
        mttd_s=sum(detected) / len(detected) if detected else None,
        mttr_s=sum(recovered) / len(recovered) if recovered else None,
    )


def up_s(account: Account) -> float:
    """Seconds in which the jobs of the account trained, each as if at full strength, all together."""
    devices = {job.job: job.gpus for job in account.jobs}
    return sum(_up_s(key, amount, devices) for key, amount in account.amounts.items())


def _up_s(key: Key, amount: float, devices: Mapping[str, int]) -> float:
    gpus = devices.get(key.job, 0)
    return amount / gpus if gpus and key.of in TRAINED else 0.0
