"""From what agents say of ranks to the view without one that holds all others up, and back (R30)."""

import time
from typing import Any

import msgspec
import pytest

from controlplane.jobs.models import Job, Rank, Replica
from controlplane.protocol import frames
from controlplane.protocol.states import Phase, RankState, ReplicaState, Section
from controlplane.recovery.models import Decision, Incident, ViewRow
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import ago
from controlplane.sentinel.fleetmap import read_map
from controlplane.sentinel.heard import Heard
from controlplane.sentinel.live_state import LiveState
from controlplane.sentinel.publishing import Publisher
from controlplane.sentinel.scan import Scanner
from tests.integration.backend.builders import (
    commit_step,
    flush_all,
    install_all,
    live_ranks,
    make_fleet,
    ref_of,
    run_job,
)

pytestmark = pytest.mark.django_db(transaction=True)


class Watch:
    """A sentinel's live_state, into which agents speak; `rung`: jobs that it rang for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live_state, self.scanner, self.seq = LiveState(), Scanner(), 0
        self.publisher, self.hot = Publisher(), dict[str, Any]()
        self.rung: list[str] = []
        monkeypatch.setattr("controlplane.runtime.bus.write_live", self.keep)
        monkeypatch.setattr("controlplane.runtime.bus.read_live", self.hot.get)
        monkeypatch.setattr("controlplane.runtime.wakeup.wake", lambda job_id, sure=False: self.rung.append(job_id))

    def keep(self, states: dict[str, Any]) -> bool:
        """As readers find them."""
        self.hot |= msgspec.json.decode(msgspec.json.encode(states))
        return True

    def look(self, job: Job, phases: dict[int, Phase], *, age_s: float) -> None:
        """Every agent tells the phase of its ranks by replica, for `age_s`; the sentinel looks."""
        self.seq += 1
        now_s, where, by_node = time.time(), read_map(), dict[str, list[Rank]]()
        for row in live_ranks(job):
            by_node.setdefault(row.node_id, []).append(row)
        self.live_state.expect(where.nodes, where.devices, where.placed, where.error_s)
        for node_id, rows in by_node.items():
            told = tuple(_status(row, phases[row.replica.index], age_s) for row in rows)
            frame = frames.AgentFrame(seq=self.seq, uptime_s=float(self.seq), ranks=told)
            self.live_state.take([Heard(node_id=node_id, session_id="s", at_s=now_s, frame=frame)])
        self.scanner.wake_for_stuck(self.live_state)
        self.publisher.publish(self.live_state, now_s, sight={"at_s": now_s, "blind": False})


def _status(row: Rank, phase: Phase, age_s: float) -> frames.RankStatus:
    return frames.RankStatus(
        ref=ref_of(row), state=RankState.TRAINING, pid=1, device_index=row.device.index, section=Section.STEP,
        phase=phase, step=20, phase_age_s=age_s, silent_s=0.1,
    )  # fmt: skip


def test_one_that_holds_all_others_up_is_left_out_rings_once_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, fleet = Watch(monkeypatch), make_fleet()
    job = run_job(fleet, steps=20)
    job.steps.update(at=ago(6.0))
    ViewRow.objects.filter(job=job).update(announced_at=ago(30.0), ordered_at=ago(29.0))
    Replica.objects.filter(attempt__job=job).update(state_since=ago(28.0))
    indexes = sorted({row.replica.index for row in live_ranks(job)})
    waits = dict.fromkeys(indexes, Phase.EXCHANGE)
    watch.rung.clear()
    for _ in range(3):
        watch.look(job, waits | {indexes[0]: Phase.COMPUTE}, age_s=6.0)
    assert watch.rung == [job.id], "once, not with every look"
    reconcile_job(job.id)
    decision = Decision.objects.get(job=job, rule="leave_out")
    assert (decision.reason_code, decision.incident is not None) == ("stuck", True)
    phases = Incident.objects.get(pk=decision.incident_id).phases
    since_s = {phase["name"]: phase["since_fault_s"] for phase in phases}
    assert since_s["fault"] == 0.0
    assert since_s["decided"] == pytest.approx(decision.evidence["stood_s"], abs=1.0)
    replica = Replica.objects.get(attempt__job=job, index=indexes[0])
    assert (replica.state, replica.times_out, replica.stop_requested) == (ReplicaState.SUSPECT, 1, False)
    assert replica.out_at is not None
    assert not job.commands.filter(kind="stop_ranks").exists()
    flush_all(fleet, job, committed=20)
    reconcile_job(job.id)
    install_all(fleet, job)
    ViewRow.objects.filter(job=job).update(ordered_at=ago(5.0))
    watch.look(job, waits | {indexes[0]: Phase.COMPUTE}, age_s=9.0)
    reconcile_job(job.id)
    assert not Decision.objects.filter(job=job, rule="admit_joiner").exists(), "it works on"
    watch.look(job, waits, age_s=0.5)
    reconcile_job(job.id)
    replica.refresh_from_db()
    assert (replica.state, replica.incarnation) == (ReplicaState.CATCHING_UP, 1)
    assert ViewRow.objects.filter(job=job).latest("epoch").view["returning"] == [indexes[0]]


def test_of_a_job_that_trains_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, fleet = Watch(monkeypatch), make_fleet()
    job = run_job(fleet, steps=20)
    indexes = sorted({row.replica.index for row in live_ranks(job)})
    watch.rung.clear()
    watch.look(job, dict.fromkeys(indexes, Phase.COMPUTE), age_s=6.0)
    watch.look(job, dict.fromkeys(indexes, Phase.EXCHANGE) | {indexes[0]: Phase.COMPUTE}, age_s=0.2)
    assert watch.rung == []
    commit_step(fleet, job, 20)
    reconcile_job(job.id)
    assert not Decision.objects.filter(job=job, rule="leave_out").exists()
