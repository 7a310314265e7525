"""A load finds with its prepared queries what their querysets find: of a job with a history, in a fleet with one."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import models

from controlplane.changes.assembly.counted import SUSPECT
from controlplane.dispatch.models import Command
from controlplane.fleet import ends
from controlplane.fleet.models import Device
from controlplane.jobs.models import RankSpeed, Replica
from controlplane.policy.bars import DEVICE_ENDS
from controlplane.protocol.states import CommandState, ReplicaState
from controlplane.recovery.load import load_snapshot
from controlplane.recovery.load_nodes import node_facts
from controlplane.recovery.models import Signal
from controlplane.runtime.clock import now
from controlplane.runtime.ids import new_id
from controlplane.runtime.prepared import Prepared
from tests.integration.backend.builders import live_ranks, make_fleet, run_job

pytestmark = pytest.mark.django_db(transaction=True)
Asked = list[tuple[str, int]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """(file of the query, rows found), of each that was asked; its queryset was asked too, and found the same."""
    found: Asked = []
    rows_of = Prepared._rows

    def compared(self: Prepared[Any], given: dict[str, Any]) -> Iterator[Any]:
        known = list(self._build(**given))
        rows = list(rows_of(self, given))
        assert [_plain(row) for row in rows] == [_plain(row) for row in known]
        found.append((self._build.__code__.co_filename.rsplit("/", 1)[1], len(rows)))
        return iter(rows)

    monkeypatch.setattr(Prepared, "_rows", compared)
    return found


def _plain(row: Any) -> Any:
    """All columns of a model, which is equal to any other with its key."""
    return {**vars(row), "_state": None} if isinstance(row, models.Model) else row


def test_of_a_job_and_a_fleet_with_a_history(asked: Asked) -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    gone, *_, last = live_ranks(job)
    gone.exit_code, gone.released_at = min(DEVICE_ENDS), now()
    gone.save(update_fields=["exit_code", "released_at"])
    Replica.objects.filter(pk=last.replica_id).update(state=ReplicaState.EVICTED)
    RankSpeed.objects.create(rank=last, told={}, straggler="relative", cause="compute", reported_at=now())
    Command.objects.filter(job=job, kind="start_ranks").update(state=CommandState.SUCCEEDED, finished_at=now())
    Device.objects.filter(node=last.node, index=0).update(reset_wanted_at=now())
    ends.plan(last.node, now() + timedelta(hours=1), now() + timedelta(hours=2), "new fans", "user:ada")
    whole = {"kind": sorted(SUSPECT)[0], "node": last.node, "seen_at": now()}
    Signal.objects.create(id=new_id("sig"), key="a whole node", **whole)
    asked.clear()

    snapshot = load_snapshot(job)
    assert {bar.node_id for bar in snapshot.bars} == {gone.node_id, last.node_id}
    assert len(asked) > 40
    assert {name for name, rows in asked if rows} >= {
        "load.py", "load_nodes.py", "load_devices.py", "load_replicas.py", "learned.py", "ledger.py", "windows.py",
        "present.py", "signals.py",
    }  # fmt: skip
    of_nodes = node_facts(job, only={gone.node_id, last.node_id})
    assert {node.id for node in of_nodes} == {gone.node_id, last.node_id}
    assert {node.id for node in (*of_nodes, *snapshot.nodes) if node.end is not None} == {last.node_id}
