"""Torch's own analyser gives a second opinion beside the finding, from the sandbox, and changes nothing."""

from typing import Any

import pytest

from controlplane.recovery import selectors, torch_analysis
from controlplane.recovery.models import Incident
from tests.integration.backend.builders import make_fleet, run_job
from tests.integration.backend.test_looks import dump, hang, look

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.recovery.health_gate.is_blind", lambda: False)
    monkeypatch.setattr(torch_analysis, "SETTLED_S", -60.0)


def found() -> Incident:
    """An incident with the finding that rank 1 of replica 1 never came."""
    fleet = make_fleet()
    job = run_job(fleet)
    command, ranks = hang(fleet, job, 1)
    for rank in (0, 1):
        fleet.tell(ranks[rank].node.name, look(ranks[rank], command, "flight_recorder", dump("pair", rank)))
    return Incident.objects.get(job=job)


def test_torchs_answer_stands_beside_ours(settings: Any) -> None:
    settings.REFERENCE_RUNS = True
    incident = found()
    before = incident.findings
    assert torch_analysis.add_missing() == 1
    incident.refresh_from_db()
    (finding,) = incident.findings
    assert finding["second_opinion"] == "torch's own analyser says COLLECTIVE_STATE_MISMATCH, ranks 1"
    assert [{k: v for k, v in finding.items() if k != "second_opinion"}] == before
    assert "Second opinion: torch's own analyser says" in selectors.incident_detail(incident.id)["stacks"][0]["text"]
    assert torch_analysis.add_missing() == 0, "asked once"


def test_where_torch_is_not_installed_nothing_is_asked(settings: Any) -> None:
    settings.REFERENCE_RUNS = False
    incident = found()
    assert torch_analysis.add_missing() == 0
    incident.refresh_from_db()
    assert "second_opinion" not in incident.findings[0]
