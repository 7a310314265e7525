"""A real browser for the page tests, and the two servers they can look at.

Without `HOLDFAST_E2E_URL` the development server of `frontend/mock` is started on a free port.
With it (and `HOLDFAST_E2E_USER`, `HOLDFAST_E2E_PASSWORD`) the same tests look at a running demo.
`E2E_SCREENSHOTS` names a directory for pictures of every page.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, Playwright

REPOSITORY = Path(__file__).parents[2]
FRONTEND = REPOSITORY / "frontend"
AXE = FRONTEND / "node_modules" / "axe-core" / "axe.min.js"
START_LIMIT_S = 20.0
BROWSER_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is looked at. `mock`: the fixtures' ids are known to exist."""

    url: str
    username: str
    password: str
    mock: bool


@dataclass(slots=True, kw_only=True)
class Complaints:
    """What a page did that it must not do: console errors, uncaught errors, requests elsewhere."""

    origin: str
    allowed_statuses: tuple[int, ...] = ()
    found: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        """Collect from now on."""
        page.on("pageerror", lambda error: self.found.append(f"uncaught: {error}"))
        page.on("console", lambda message: self._console(message.type, message.text))
        page.on("request", lambda request: self._request(request.url))

    def _console(self, kind: str, text: str) -> None:
        # The browser itself reports a refused answer as an error; tests that want one allow it.
        if kind == "error" and not any(f"status of {status}" in text for status in self.allowed_statuses):
            self.found.append(f"console: {text}")

    def _request(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != urlsplit(self.origin).netloc:
            self.found.append(f"request to another origin: {url}")


class MockServer:
    """The development server as a process that can be killed, frozen and started again on its port."""

    def __init__(self) -> None:
        self.process = self._start("0")
        self.target = Target(url=self._said(), username="ana", password="holdfast", mock=True)

    def kill(self) -> None:
        """At once, as a crash does."""
        self.process.kill()
        self.process.wait(timeout=START_LIMIT_S)

    def start_again(self) -> None:
        """On the same port, once it is dead."""
        self.process = self._start(str(urlsplit(self.target.url).port))
        assert self._said() == self.target.url

    def freeze(self) -> None:
        """Its connections stay, and nothing answers."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on where it stood."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """For good."""
        self.thaw()
        self.process.terminate()
        self.process.wait(timeout=START_LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    @staticmethod
    def _start(port: str) -> "subprocess.Popen[str]":
        command = [shutil.which("node") or "node", str(FRONTEND / "mock" / "server.mjs"), port]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def _said(self) -> str:
        assert self.process.stdout is not None
        url = self.process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), f"the mock server did not start: {url!r}"
        return url


@contextmanager
def mock_server() -> Iterator[Target]:
    """The development server on a free port, for as long as the block lasts."""
    server = MockServer()
    try:
        yield server.target
    finally:
        server.stop()


@contextmanager
def target() -> Iterator[Target]:
    """The server named by the environment, else the mock."""
    url = os.environ.get("HOLDFAST_E2E_URL", "")
    if url:
        yield Target(
            url=url.rstrip("/"),
            username=os.environ.get("HOLDFAST_E2E_USER", "admin"),
            password=os.environ.get("HOLDFAST_E2E_PASSWORD", ""),
            mock=False,
        )
        return
    with mock_server() as found:
        yield found


def launch(playwright: Playwright) -> Browser:
    """Chromium of the system; `HOLDFAST_CHROMIUM` names another."""
    path = os.environ.get("HOLDFAST_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
    return playwright.chromium.launch(executable_path=path, args=BROWSER_ARGUMENTS)


def sign_in(context: BrowserContext, where: Target, username: str | None = None) -> None:
    """Leave a session cookie in the context, through the page a person would use."""
    page = context.new_page()
    page.goto(f"{where.url}/login")
    page.get_by_label("User name").fill(username or where.username)
    page.get_by_label("Password").fill(where.password)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Fleet overview").wait_for()
    page.close()


def axe_violations(page: Page) -> list[str]:
    """WCAG 2.2 A and AA violations as `rule: targets`. Injected through the debugger, so the
    page's content policy stays as it is."""
    page.evaluate(AXE.read_text(encoding="utf-8") + "\n;undefined")
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    result = page.evaluate("tags => axe.run(document, {runOnly: {type: 'tag', values: tags}})", tags)
    return [
        f"{item['id']}: " + "; ".join(f"{node['target']} {node['failureSummary']}" for node in item["nodes"][:4])
        for item in result["violations"]
    ]


def picture(page: Page, name: str, *, whole: bool = True) -> None:
    """Save a picture of the whole page, or of what is in sight, if the environment asks for pictures."""
    directory = os.environ.get("E2E_SCREENSHOTS", "")
    if directory:
        Path(directory).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(directory) / f"{name}.png"), full_page=whole)
