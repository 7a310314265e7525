"""Who loses a race tries again inside: no agent's session ends for it (O9)."""

import threading
from typing import Any

import pytest
from django.db import OperationalError

from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Rank
from controlplane.live.writer import Item, Writer
from controlplane.protocol.commands import WarmHost
from controlplane.protocol.frames import AgentHello, RankStatus
from controlplane.protocol.states import CommandState, Phase, RankState, Section
from controlplane.recovery.rows import JobRows
from controlplane.runtime.clock import ago
from tests.integration.backend.builders import hello, live_ranks, make_fleet, make_job, ref_of, run_job

pytestmark = pytest.mark.django_db(transaction=True)


class Serialization(Exception):
    """As psycopg raises it: another transaction has written what this one read."""

    sqlstate = "40001"


def said_by(writer: Writer, node: Node, said: AgentHello | None, session: str) -> list[tuple[int, str]]:
    """What the writer answers to one hello, or to the end of a session."""
    answers: list[tuple[int, str]] = []
    answered = threading.Event()

    def callback(seq: int, resend: bool, code: str, detail: str) -> None:
        answers.append((seq, code))
        answered.set()

    writer.put(Item(node_id=node.id, session_id=session, callback=callback, hello=said))
    if said is not None:
        assert answered.wait(20.0)
    return answers


def another_was_first(monkeypatch: pytest.MonkeyPatch, *, how: str) -> list[str]:
    """The first look at the node's ranks is overtaken: by a write that our compare-and-set then misses, or
    by one for which the database itself gives our transaction up."""
    lost: list[str] = []
    real = JobRows.held

    def overtaken(rows: JobRows, node_id: str) -> Any:
        found = real(rows, node_id)
        if not lost:
            lost.append(how)
            if how == "serialization":
                raise OperationalError("could not serialize access") from Serialization()
            Rank.objects.filter(node_id=node_id, state=RankState.LAUNCHING).update(state=RankState.HUNG)
        return found

    monkeypatch.setattr(JobRows, "held", overtaken)
    return lost


@pytest.mark.parametrize("how", ["compare_and_set", "serialization"])
def test_a_hello_that_lost_a_race_is_tried_again_and_the_session_opens(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = next(row for row in live_ranks(job) if row.node.name == "n1")
    Rank.objects.filter(pk=row.pk).update(state=RankState.LAUNCHING)
    status = RankStatus(
        ref=ref_of(row), state=RankState.TRAINING, pid=7, device_index=row.device.index, section=Section.STEP,
        phase=Phase.COMPUTE, step=2, phase_age_s=0.0, silent_s=0.0,
    )  # fmt: skip
    said = hello("n1", journal="another")
    said = AgentHello(**{name: getattr(said, name) for name in said.__struct_fields__} | {"ranks": (status,)})
    lost = another_was_first(monkeypatch, how=how)
    writer = Writer(lambda topic, message: None)
    writer.start()
    try:
        answers = said_by(writer, fleet.nodes["n1"], said, "web.again")
    finally:
        writer.stop()
    assert lost == [how]
    assert answers == [(0, "")]
    assert Node.objects.get(name="n1").session_id == "web.again"
    assert Rank.objects.get(pk=row.pk).state == RankState.INITIALIZING


def test_an_order_that_is_answered_while_it_expires_stops_no_other_from_expiring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = make_fleet(1)
    job = make_job()
    node = fleet.nodes["n1"]
    body = WarmHost(job_id=job.id, attempt=0, user="ada")
    first, second = (dispatch.enqueue(body, node_id=node.id, job_id=job.id) for _ in range(2))
    Command.objects.update(due_at=ago(1.0))
    real = dispatch.guard.move
    overtaken: list[str] = []

    def answered_meanwhile(row: Any, machine: str, to: str, **columns: Any) -> str:
        if not overtaken:
            overtaken.append(row.pk)
            Command.objects.filter(pk=row.pk).update(state=CommandState.SUCCEEDED)
        return real(row, machine, to, **columns)

    monkeypatch.setattr(dispatch.guard, "move", answered_meanwhile)
    expired = dispatch.expire_overdue()
    assert {row.pk for row in expired} == {first.pk, second.pk} - set(overtaken)
    assert Command.objects.get(pk=expired[0].pk).state == CommandState.EXPIRED
    assert Command.objects.get(pk=overtaken[0]).state != CommandState.EXPIRED
