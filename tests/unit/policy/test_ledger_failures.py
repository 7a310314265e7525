"""How often jobs fail, how soon it is found and how soon it is over, each computed another way."""

from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.ledger.account import Account, JobAccount, Key
from controlplane.policy.ledger.facts import NOBODY
from controlplane.policy.ledger.failures import TRAINED, Failure, failures_of, up_s
from controlplane.protocol.ledger import TimeClass

NOTHING: Any = {"held_gpu_s": 0.0, "queued_gpu_s": 0.0, "asked_gpu_s": 0.0, "productive_gpu_s": 0.0, "ettr": None}
SECONDS = st.none() | st.floats(0.0, 1e6)


def account(*amounts: tuple[str, TimeClass, float], gpus: int = 4) -> Account:
    jobs = sorted({job for job, _, _ in amounts if job})
    return Account(
        since_s=0.0, until_s=100.0, known_gpu_s=sum(amount for *_, amount in amounts), restated_gpu_s=0.0,
        amounts={Key(job, "", of, NOBODY): amount for job, of, amount in amounts},
        jobs=tuple(JobAccount(job=job, gpus=gpus, **NOTHING) for job in jobs),
    )  # fmt: skip


@given(st.lists(st.tuples(SECONDS, SECONDS), max_size=20), st.floats(0.0, 1e9))
def test_each_mean_is_that_of_what_was_observed_and_none_of_nothing(
    every: list[tuple[float | None, float | None]], up: float
) -> None:
    found = failures_of((Failure(detected_s=d, recovered_s=r) for d, r in every), up)
    detected = [d for d, _ in every if d is not None]
    recovered = [r for _, r in every if r is not None]
    assert (found.failures, found.detected, found.recovered) == (len(every), len(detected), len(recovered))
    for mean, known in ((found.mttd_s, detected), (found.mttr_s, recovered)):
        assert mean is None if not known else mean == pytest.approx(fmean(known))
    assert found.mttf_s is None if not every else found.mttf_s == pytest.approx(up / len(every))


def test_only_time_in_which_steps_were_made_is_between_failures() -> None:
    every = tuple(("job_1", of, 8.0) for of in TimeClass)
    assert up_s(account(*every)) == len(TRAINED) * 8.0 / 4
    assert TRAINED.isdisjoint({TimeClass.STALL, TimeClass.RECOVERY, TimeClass.PREEMPTED, TimeClass.IDLE})


def test_time_of_several_jobs_is_added_and_what_nobody_holds_is_none_of_it() -> None:
    found = account(("a", TimeClass.PRODUCTIVE, 40.0), ("b", TimeClass.PRODUCTIVE, 20.0), ("", TimeClass.IDLE, 900.0))
    assert up_s(found) == 15.0
