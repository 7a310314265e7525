"""Incidents of several jobs that have one cause are parts of one, which is over when they are."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.protocol.spec import JobSpec, Metadata
from controlplane.protocol.states import IncidentOutcome, IncidentState
from controlplane.recovery import fleet_pass, shared
from controlplane.recovery.models import Incident, Signal
from controlplane.runtime.clock import ago
from controlplane.runtime.models import Event
from tests.integration.backend.builders import make_fleet, submit_job
from tests.integration.backend.conftest import job_spec

pytestmark = pytest.mark.django_db


def incident(job: Job, node: Node, name: str) -> Incident:
    row = Incident.objects.create(id=name, job=job, node=node, title=f"{node.name} is not heard", opened_at=ago(5.0))
    Signal.objects.create(
        id=f"sig_{name}", key=name, kind="node_silent", job=job, node=node, incident=row, value=3.0, threshold=2.0,
        seen_at=ago(5.0),
    )  # fmt: skip
    return row


def test_a_rack_that_goes_under_two_jobs_is_one_incident_until_both_are_over() -> None:
    nodes = list(make_fleet(4).nodes.values())
    Node.objects.filter(pk__in=[node.pk for node in nodes[:2]]).update(segment="rack-1")
    first, second = (
        submit_job(JobSpec(metadata=Metadata(name=n), spec=job_spec().spec), owner="ada", actor="ada") for n in "ab"
    )
    incident(first, nodes[0], "inc_1")
    fleet_pass.reconcile_fleet()
    assert not Incident.objects.exclude(shared="").exists(), "one job's is no shared cause"
    incident(second, nodes[1], "inc_2")
    fleet_pass.reconcile_fleet()
    fleet_pass.reconcile_fleet()
    assert not shared.waits(), "what is linked already asks for no lock"
    whole = Incident.objects.exclude(shared="").get()
    assert (whole.job, whole.shared, whole.state) == (None, "segment", IncidentState.OPEN)
    assert whole.title == "2 nodes of rack-1 are not heard: 2 jobs"
    assert set(Incident.objects.filter(part_of=whole).values_list("id", flat=True)) == {"inc_1", "inc_2"}
    assert Event.objects.filter(kind="incident.part").count() == 2

    client = Client()
    client.force_login(User.objects.create_user("ada2"))
    detail = client.get(f"/api/v1/incidents/{whole.id}").json()
    assert [part["id"] for part in detail["parts"]] == ["inc_1", "inc_2"]
    assert client.get("/api/v1/incidents/inc_1").json()["part_of"] == whole.id

    Incident.objects.filter(pk="inc_1").update(state=IncidentState.RESOLVED, outcome=IncidentOutcome.RECOVERED)
    fleet_pass.reconcile_fleet()
    assert Incident.objects.get(pk=whole.pk).state == IncidentState.OPEN
    assert not shared.waits(), "one part is open"
    Incident.objects.filter(pk="inc_2").update(state=IncidentState.RESOLVED, outcome=IncidentOutcome.LOST)
    fleet_pass.reconcile_fleet()
    whole.refresh_from_db()
    assert (whole.state, whole.outcome) == (IncidentState.RESOLVED, IncidentOutcome.LOST)
