"""The writer of a web process: whose hello it applies, in which turn, and that no end of a session is lost."""

import threading
from typing import Any

import pytest

from controlplane.fleet import sessions
from controlplane.fleet.models import Node
from controlplane.live.writer import Item, Writer, _steps
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
            raise ValueError("away")
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
            raise ValueError("away")
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
