"""No request makes the server answer 5xx: schemathesis, every kind of caller; all phases by `make test-release`.

HOLDFAST_TEST_FUZZ_EXAMPLES and HOLDFAST_TEST_FUZZ_SEED make it longer and other; `make fuzz` does.
"""

import os
import sys

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import override_settings

from controlplane.access.services import create_api_token
from controlplane.api import throttle
from controlplane.recovery.models import Decision, Incident
from controlplane.recovery.requests import checkpoint
from tests.attacks.api.fuzzing import PHASES, PhaseName, fuzz, watched_server
from tests.integration.api.conftest import SPEC, make_node
from tests.integration.api.world import running_job

EXAMPLES = int(os.environ.get("HOLDFAST_TEST_FUZZ_EXAMPLES", "3"))
SEED = int(os.environ.get("HOLDFAST_TEST_FUZZ_SEED", "20"))
LONG = EXAMPLES > 20
# Each bound of each parameter, systematically: two thirds of the cost of the short run.
BOUNDS = LONG or "HOLDFAST_TEST_RELEASE" in os.environ
COVERED = "admin"
# Who may not is refused before any row is read, alike on both databases: on PostgreSQL who may do all asks.
SCOPES = ("", "read", "submit", "operate", COVERED)
if settings.DATABASES["default"]["ENGINE"].endswith("postgresql") and not LONG:
    SCOPES = (COVERED,)
GENERATED = (PhaseName.EXAMPLES, PhaseName.FUZZING)
# Coverage is the same whoever asks, once he may; it and the stateful phase are most of the cost.
PLANS: dict[str, tuple[PhaseName, ...]] = dict.fromkeys(SCOPES, PHASES if LONG else GENERATED)
# "failure" is a failed check of an answer: judged below by what the server answered.
RAN = ("success", "failure")
pytestmark = pytest.mark.timeout(3 * 3600 if LONG else 900)


@pytest.fixture
def world(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(throttle.Buckets, "take", lambda self, name: None)
    nodes = [make_node("node-1"), make_node("node-2")]
    job = running_job(nodes, SPEC)
    return {
        "job_id": job.id,
        "node_id": nodes[0].id,
        "device_id": nodes[0].devices.get(index=0).id,
        "incident_id": Incident.objects.get().id,
        "decision_id": Decision.objects.order_by("-id")[0].id,
        "request_id": checkpoint(job, reason="r", actor="user:ada").id,
    }


@override_settings(HOLDFAST_DEMO=True)
@pytest.mark.parametrize("scope", SCOPES, ids=[scope or "anonymous" for scope in SCOPES])
def test_no_generated_request_is_answered_by_a_server_error(world: dict[str, str], scope: str) -> None:
    user = User.objects.create_user("ada", password="correct horse battery", is_superuser=True)
    headers: dict[str, str] = {}
    if scope:
        headers = {"Authorization": f"Bearer {create_api_token(user, name=scope, scope=scope).secret}"}
    with watched_server() as (url, watched):
        passes: list[tuple[dict[str, str], tuple[PhaseName, ...]]] = [({}, PLANS[scope])]
        if scope == COVERED or (LONG and scope):
            reached = {f"path.{name}": value for name, value in world.items()}
            # The bounds are the same on both databases, but for a long run.
            covered = (PhaseName.COVERAGE,) if BOUNDS and connection.vendor != "postgresql" else ()
            passes.append((reached, PHASES if LONG else (*GENERATED, *covered)))
        for parameters, phases in passes:
            report = fuzz(url, headers, examples=EXAMPLES, seed=SEED, parameters=parameters, phases=phases)
            finished = {name: report.finished.get(name.value) for name in phases}
            assert finished[PhaseName.FUZZING] in RAN, finished
            assert finished.get(PhaseName.COVERAGE, "success") in RAN, finished
            assert report.errors == []
    counted = ", ".join(f"{status}: {count}" for status, count in sorted(watched.statuses.items()))
    sys.stderr.write(f"\n{scope or 'anonymous'}: {sum(watched.statuses.values())} answers ({counted})\n")
    assert watched.failed == [], "\n".join(watched.failed)
    assert sum(watched.statuses.values()) > 50
