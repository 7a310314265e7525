"""The writer of a web process: whose hello it applies, in which turn, and that no end of a session is lost."""

import threading
from collections import Counter
from typing import Any

import pytest
from django.db import InterfaceError, connection, transaction
from django.test.utils import CaptureQueriesContext

from benchmarks.returns import a_fleet
from controlplane.fleet import sessions
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.live.writer import Item, Writer, _steps
from controlplane.recovery import returning
from controlplane.recovery.models import Signal
from controlplane.runtime import events
from controlplane.runtime.clock import ago
from controlplane.runtime.models import Event
from tests.integration.backend.builders import hello, make_fleet

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_writer_opens_no_session_whose_socket_is_gone_and_keeps_each_nodes_order() -> None:
    fleet = make_fleet(4)
    ids = {name: node.id for name, node in fleet.nodes.items()}
    answers: dict[str, list[Any]] = {name: [] for name in fleet.nodes}
    writer = Writer(lambda *_: None)

    def put(name: str, session: str, *, said: bool = True, gone: bool = False) -> None:
        def heard(seq: int, resend: bool, code: str, detail: str) -> None:
            answers[name].append((session, code))

        assert writer.put(
            Item(
                node_id=ids[name], session_id=session, callback=heard, hello=hello(name) if said else None,
                gone=lambda: gone,
            )
        )  # fmt: skip

    put("n1", "web.a1")
    put("n2", "web.gone", gone=True)
    put("n1", "web.a1", said=False)
    put("n3", "web.a3")
    put("n1", "web.b1")
    put("n4", "web.older", said=False)
    writer.start()
    writer.stop()
    assert dict(Node.objects.values_list("name", "session_id")) == {
        "n1": "web.b1", "n2": "web.n2", "n3": "web.a3", "n4": "web.n4",
    }  # fmt: skip
    assert Node.objects.filter(connected=True).count() == 4
    assert answers == {"n1": [("web.a1", ""), ("web.b1", "")], "n2": [], "n3": [("web.a3", "")], "n4": []}


def test_ends_that_could_not_be_written_are_written_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = make_fleet(2)
    writer = Writer(lambda *_: None)
    real = sessions.close_sessions
    tries: list[dict[str, str]] = []

    def once_away(ended: dict[str, str]) -> set[str]:
        tries.append(dict(ended))
        if len(tries) == 1:
            raise InterfaceError("away")
        return real(ended)

    monkeypatch.setattr("controlplane.live.writer.close_sessions", once_away)
    for name, node in fleet.nodes.items():
        writer._step([Item(node_id=node.id, session_id=f"web.{name}", callback=lambda *_: None)])
    assert [len(ended) for ended in tries] == [1, 2]
    assert not Node.objects.filter(connected=True).exists()


def test_ends_that_could_not_be_written_are_tried_again_though_nothing_else_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = make_fleet(2)
    writer, real, written = Writer(lambda *_: None), sessions.close_sessions, threading.Event()
    tries: list[int] = []

    def twice_away(ended: dict[str, str]) -> set[str]:
        tries.append(len(ended))
        if len(tries) < 3:
            raise InterfaceError("away")
        written.set()
        return real(ended)

    monkeypatch.setattr("controlplane.live.writer.close_sessions", twice_away)
    monkeypatch.setattr("controlplane.live.writer.RETRY_S", 0.05)
    for name, node in fleet.nodes.items():
        writer.put(Item(node_id=node.id, session_id=f"web.{name}", callback=lambda *_: None))
    writer.start()
    assert written.wait(30.0)
    writer.stop()
    assert not Node.objects.filter(connected=True).exists()


def test_an_end_that_can_never_be_written_keeps_no_other_from_it_and_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = make_fleet(3)
    writer, real, (bad, *others) = Writer(lambda *_: None), sessions.close_sessions, list(fleet.nodes.values())

    def fails(ended: dict[str, str]) -> set[str]:
        if bad.id in ended:
            raise ValueError("no such row can be")
        return real(ended)

    monkeypatch.setattr("controlplane.live.writer.close_sessions", fails)
    items = [
        Item(node_id=node.id, session_id=f"web.{name}", callback=lambda *_: None) for name, node in fleet.nodes.items()
    ]
    writer._step(items)
    assert set(Node.objects.filter(connected=False).values_list("pk", flat=True)) == {node.id for node in others}
    assert writer._ended == {}


def test_findings_about_nodes_that_are_back_are_settled_together_as_they_are_one_by_one() -> None:
    costs, kinds = [], []
    for size in (3, 30):
        with transaction.atomic():
            agents = a_fleet(size)
            job, nodes = Job.objects.first(), list(Node.objects.filter(pk__in=agents.hellos).order_by("pk"))
            for node in nodes:
                found = {"job": job, "node": node, "value": 30.0, "threshold": 2.0, "seen_at": ago(28.0)}
                Signal.objects.create(id=f"sig_{node.id}", kind="node_silent", key=f"node_silent:{node.id}", **found)
            newest = events.newest_seq()
            with CaptureQueriesContext(connection) as queries:
                hellos = [
                    returning.Return(node_id=n, session_id="web.b", said=said) for n, said in agents.hellos.items()
                ]
                assert len(returning.open_quiet(hellos)) == size
            costs.append(len(queries))
            told = Event.objects.filter(seq__gt=newest)
            kinds.append(Counter(told.exclude(kind="node.connected").values_list("kind", flat=True)))
            settled = told.filter(kind="signal.settled").order_by("seq")
            assert [each.sentence for each in settled] == [
                f"node_silent: node {node.name} is connected again" for node in nodes
            ]
            assert all(each.patch["settled_at"] for each in settled)
            assert not Signal.objects.filter(settled_at=None).exists()
            transaction.set_rollback(True)
    assert kinds == [{"signal.settled": size, "node.refreshed": size, "job.refreshed": 1} for size in (3, 30)]
    assert costs[0] == costs[1]


def test_hellos_that_are_applied_one_by_one_keep_nobody_waiting_that_comes_back_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of an agent with another journal, whose socket ends while others of its kind are at work, nothing is applied."""
    fleet = make_fleet(4)
    monkeypatch.setattr("controlplane.live.writer.ALONE_S", 0.0)
    answered: list[str] = []
    gone: set[str] = set()

    def item(name: str, session: str, **changes: str) -> Item:
        return Item(
            node_id=fleet.nodes[name].id, session_id=session, hello=hello(name, **changes),
            callback=lambda seq, resend, code, detail: answered.append(session), gone=lambda: session in gone,
        )  # fmt: skip

    writer = Writer(lambda *_: None)
    for name in ("n1", "n2"):
        writer.put(item(name, f"another.{name}", journal="another"))
    writer.put(item("n3", "same.n3"))
    turn, _ = writer._turn(wait=True)
    for step in _steps(turn):
        writer._step(step)
    assert answered == ["same.n3"]
    assert writer.depth() == 2
    writer._step([item("n1", "later.n1", journal="another"), item("n4", "same.n4")])
    assert answered == ["same.n3", "same.n4"], "of one node the first comes first"
    gone.add("another.n2")
    writer.start()
    writer.stop()
    assert answered == ["same.n3", "same.n4", "another.n1", "later.n1"]
    assert Node.objects.get(name="n1").session_id == "later.n1"
    assert Node.objects.get(name="n2").session_id == "web.n2"
