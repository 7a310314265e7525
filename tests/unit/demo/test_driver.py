"""The REST driver of scenes and load tests shows its token to its own server alone."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from controlplane.demo.driver import Driver, Refused


@contextmanager
def listening(location: str = "") -> Iterator[tuple[str, list[str]]]:
    """(address, authorizations that were shown); each answer is a redirect to `location`, or an empty object."""
    shown: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers.get("Authorization", ""))
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(302 if location else 200)
            if location:
                self.send_header("Location", location + "/x")
            self.end_headers()
            self.wfile.write(b"" if location else b"{}")

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", shown
    finally:
        server.shutdown()
        server.server_close()


def test_a_redirect_carries_the_token_nowhere() -> None:
    with ExitStack() as open_:
        elsewhere, stolen = open_.enter_context(listening())
        server, shown = open_.enter_context(listening(elsewhere))
        for ask in (Driver(server, "secret").get, Driver(server, "secret").post):
            with pytest.raises(Refused) as refused:
                ask("/incidents")
            assert refused.value.status == 302
        assert shown == ["Bearer secret"] * 2 and not stolen


def test_a_proxy_of_the_environment_sees_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as open_:
        proxy, seen = open_.enter_context(listening())
        server, shown = open_.enter_context(listening())
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert Driver(server, "secret").get("/incidents") == {}
        assert shown == ["Bearer secret"] and not seen
