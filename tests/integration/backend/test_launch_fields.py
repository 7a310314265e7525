"""Fields of a job's spec that reach its ranks with the order that starts them, one by one."""

from typing import Any

import pytest

from controlplane.policy.signals.devices import DeviceAtRisk
from controlplane.protocol.commands import StartRanks
from controlplane.protocol.spec import Checkpoint, EmergencyCheckpoint, Parallelism, Resiliency, Stragglers
from controlplane.recovery import signals
from controlplane.recovery.reconcile import reconcile_job
from tests.findings import finding
from tests.integration.backend.builders import bodies, commit_step, live_ranks, make_fleet, make_job, run_job

pytestmark = pytest.mark.django_db
OWN = {"entrypoint": ["/bin/train", "--fast"], "parallelism": Parallelism(pp=2, replica_dp=3, dp=1)}
CHANGES: dict[str, tuple[dict[str, Any], str, object]] = {
    "entrypoint": (OWN, "entrypoint", ("/bin/train", "--fast")),
    "dir": ({"checkpoint": Checkpoint(dir="/srv/ck")}, "config.checkpoint_dir", "/srv/ck/{job}"),
    "allow_faults": ({"resiliency": Resiliency(allow_faults=False)}, "config.allow_faults", False),
    "stragglers.interval_s": (
        {"resiliency": Resiliency(stragglers=Stragglers(interval_s=77.0))}, "config.timing_interval_s", 77.0,
    ),
    "log_markers": (
        {"resiliency": Resiliency(log_markers={"oom": "out of * memory"})}, "log_markers", {"oom": "out of * memory"},
    ),
}  # fmt: skip


def launch(**changes: Any) -> tuple[str, Any]:
    """The job, and the first order that starts ranks of it."""
    job = make_job(**changes)
    reconcile_job(job.id)
    (_, body), *_ = bodies(job, "start_ranks")
    assert isinstance(body, StartRanks)
    return job.id, body.launch


def read(found: Any, path: str) -> object:
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_a_changed_field_changes_the_order_that_starts_ranks(field: str) -> None:
    make_fleet(4)
    changes, path, wanted = CHANGES[field]
    job_id, changed = launch(**changes)
    if isinstance(wanted, str):
        wanted = wanted.format(job=job_id)
    assert read(changed, path) == wanted


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_without_the_field_the_order_says_something_else(field: str) -> None:
    make_fleet(4)
    _, path, wanted = CHANGES[field]
    assert read(launch()[1], path) != wanted


def test_an_emergency_save_that_is_late_lapses() -> None:
    """`deadline_s`."""
    fleet = make_fleet(4)
    wish = Checkpoint(emergency=EmergencyCheckpoint(min_gap_ratio=0.0, deadline_s=17.0))
    job = run_job(fleet, checkpoint=wish)
    commit_step(fleet, job, 2)
    row = live_ranks(job)[0]
    where = {"job_id": job.id, "node_id": row.node_id, "device_index": row.device.index}
    signals.raise_signal(finding(DeviceAtRisk, **where, score=0.9, limit=0.3, parts={}))
    reconcile_job(job.id)
    orders = bodies(job, "request_save")
    assert orders and {command.ttl_s for command, _ in orders} == {17.0}
