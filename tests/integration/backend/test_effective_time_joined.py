"""The effective time after a recovery: who joined with a view and has caught up is a part of its strength."""

import pytest

from controlplane.jobs.models import Job, Replica
from controlplane.jobs.numbers import numbers_of
from tests.integration.backend.test_effective_time import Told

pytestmark = pytest.mark.django_db


def recovered(told: Told, *, caught_up: bool) -> None:
    """The third replica joins with a view that the two others begin."""
    told.new_view(contributors=2)
    Job.objects.filter(pk=told.job.pk).update(epoch=told.epoch)
    Replica.objects.filter(attempt__job=told.job, index=2).update(contributing=caught_up)
    told.job.refresh_from_db()


def test_steps_after_a_recovery_are_undisturbed_ones_of_full_strength_again() -> None:
    """A job that got faster after its first recovery showed 148 %: nothing after it was ever looked at."""
    told = Told(age_s=3600.0)
    told.steps(40, 2.0)
    recovered(told, caught_up=True)
    told.steps(200, 1.0)
    numbers = numbers_of(told.end())
    assert numbers.ettr_basis == "observed"
    assert numbers.undisturbed_step_s == pytest.approx(1.0, rel=0.01)
    assert numbers.productivity == pytest.approx(1.0, rel=0.01)


def test_steps_while_the_joiner_catches_up_are_of_less_strength() -> None:
    told = Told(age_s=3600.0)
    told.steps(40, 2.0)
    recovered(told, caught_up=False)
    told.steps(40, 1.0)
    assert numbers_of(told.end()).undisturbed_step_s == pytest.approx(2.0, rel=0.01)


def test_full_strength_is_seen_when_the_replica_that_was_missing_has_caught_up() -> None:
    told = Told(age_s=3600.0)
    told.new_view(contributors=2)
    told.steps(40, 2.0)
    assert numbers_of(told.fresh()).ettr_basis == "estimated"
    recovered(told, caught_up=True)
    told.steps(40, 2.0)
    assert numbers_of(told.end()).ettr_basis == "observed"
