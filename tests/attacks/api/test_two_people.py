"""What takes two people is not approved by one who has two ways to say so."""

from typing import Any

import pytest
from django.contrib.auth.models import User

from controlplane.policies import selectors as policies
from controlplane.policy.config import PolicyConfig
from controlplane.protocol import spec as specs
from controlplane.protocol.states import Mode
from controlplane.recovery import recommended
from controlplane.recovery.models import Decision
from controlplane.recovery.reconcile import reconcile_job
from tests.integration.api.conftest import grant
from tests.integration.api.principals import Browser, by_token
from tests.integration.backend.builders import kill_rank, live_ranks, make_fleet, run_job

pytestmark = pytest.mark.django_db(transaction=True)
WHY = {"reason": "go"}


def test_a_session_and_two_tokens_of_one_account_are_one_person(monkeypatch: pytest.MonkeyPatch, user: User) -> None:
    strict = policies.InForce(PolicyConfig(second_approver_gpu_s=0.0), {})
    monkeypatch.setattr(policies, "in_force", lambda job_id: strict)
    fleet = make_fleet(4)
    job = run_job(fleet, steps=5, resiliency=specs.Resiliency(mode=Mode.RECOMMEND))
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    row = Decision.objects.get(job=job, mode="recommend")
    grant(user, "operate")
    ways: list[Any] = [by_token(user, "operate").caller, Browser(user), by_token(user, "operate").caller]
    codes = [way.post(f"/decisions/{row.id}:approve", WHY).status_code for way in ways]
    assert codes == [202, 409, 409]
    assert recommended.shown(Decision.objects.get(pk=row.pk))["approvals_needed"] == 1
    reconcile_job(job.id)
    assert not Decision.objects.filter(job=job, rule="replica_failure", applied=True).exists()
    other = User.objects.create_user("bob", password="correct horse battery")
    grant(other, "operate")
    assert by_token(other, "operate").caller.post(f"/decisions/{row.id}:approve", WHY).status_code == 202
    reconcile_job(job.id)
    done = Decision.objects.get(job=job, rule="replica_failure", applied=True)
    assert done.evidence["consent"] == f"Approved by user:{user.username} (token child) and user:bob (token child)."
