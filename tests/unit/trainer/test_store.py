"""The rendezvous store, which serves all ranks in one thread, waits for no name server."""

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from trainer import store


@pytest.mark.parametrize(
    ("host", "wanted"),
    [("127.0.0.1", "attempts:0"), ("::1", "attempts:0"), ("store.example", "timeout:1 attempts:3")],
)
def test_given_an_address_it_asks_no_name_server(monkeypatch: pytest.MonkeyPatch, host: str, wanted: str) -> None:
    seen: list[str] = []

    def serve(*_: object, **__: object) -> SimpleNamespace:
        seen.append(os.environ["RES_OPTIONS"])
        return SimpleNamespace(port=1)

    monkeypatch.setenv("RES_OPTIONS", "")
    monkeypatch.delenv("RES_OPTIONS")
    monkeypatch.setattr(store, "TCPStore", serve)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    monkeypatch.setattr(signal, "sigwait", lambda _: signal.SIGTERM)
    monkeypatch.setattr(sys, "argv", ["store", "--host", host])
    store.main()
    assert seen == [wanted]
