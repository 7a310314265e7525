"""Real servers of the S3 protocol (moto) and of Google's (gcp-storage-emulator) as processes
of their own, and a door before the former that can refuse a key as expired."""

import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from controlplane.demo.ports import free_port

BUCKET = "checkpoints"
_HOP_BY_HOP = ("connection", "content-length", "transfer-encoding", "expect")
OLD, NEW = "OLDKEYOLDKEYOLDKEYO", "NEWKEYNEWKEYNEWKEYN"


class _Server:
    """A process that serves at `url` once `ready`, a request, is answered."""

    def __init__(self, port: int, argv: list[str], ready: urllib.request.Request) -> None:
        self.url = _url(port)
        self._process = subprocess.Popen([sys.executable, *argv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(ready, timeout=5).close()
                return
            except OSError:
                assert time.monotonic() < deadline and self._process.poll() is None, f"{argv} does not come up"
                time.sleep(0.1)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class ObjectStore(_Server):
    """`url` answers with one empty bucket, BUCKET."""

    def __init__(self) -> None:
        port = free_port("127.0.0.1")
        make_bucket = urllib.request.Request(f"{_url(port)}/{BUCKET}", method="PUT")
        super().__init__(port, ["-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], make_bucket)

    def environment(self, url: str | None = None) -> dict[str, str]:
        """For a process that uses the store."""
        return {
            "AWS_ENDPOINT_URL": url or self.url,
            "AWS_ACCESS_KEY_ID": NEW,
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


class GoogleStore(_Server):
    """`url` answers with one empty bucket, BUCKET, and asks for no credentials."""

    def __init__(self) -> None:
        port = free_port("127.0.0.1")
        serve = f"create_server('127.0.0.1', {port}, True, '{BUCKET}').run()"
        run = f"from gcp_storage_emulator.server import create_server; {serve}"
        super().__init__(port, ["-c", run], urllib.request.Request(f"{_url(port)}/storage/v1/b/{BUCKET}"))


class Door:
    """Forwards to a store, but answers `code` to requests signed with the key `expired`. `keys` are
    those it has seen, in order; `on_refusal` is called before each refusal is sent."""

    def __init__(self, store: ObjectStore, *, code: str | None) -> None:
        self.keys: list[str] = []
        self.refused, self.expired = 0, OLD
        self.on_refusal = lambda: None
        door = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return

            def _forward(self) -> None:
                body = self._body()
                key = OLD if OLD in self.headers.get("Authorization", "") else NEW
                door.keys.append(key)
                if code is not None and key == door.expired:
                    door.refused += 1
                    door.on_refusal()
                    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>expired</Message></Error>"
                    self._say(400, text.encode(), {"Content-Type": "application/xml"})
                    return
                self._say(*_ask(f"{store.url}{self.path}", self.command, body, dict(self.headers)))

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body

            def _say(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date"):
                        self.send_header(name, value)
                length = headers.get("Content-Length") if self.command == "HEAD" else None
                self.send_header("Content-Length", length or str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _ask(url: str, method: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
    kept = {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}
    # Without a type urllib says that a body is a form, and the store would read it as one.
    kept.setdefault("Content-Type", "application/octet-stream")
    request = urllib.request.Request(url, data=body or None, headers=kept, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers)
