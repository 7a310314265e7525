"""A real browser for the page tests, and what every page is judged by.

`E2E_SCREENSHOTS` names a directory for screenshots of every page.
"""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Locator, Page, Playwright

REPOSITORY = Path(__file__).parents[2]
FRONTEND = REPOSITORY / "frontend"
AXE = FRONTEND / "node_modules" / "axe-core" / "axe.min.js"
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
    """A server, and an account that signs in to it."""

    url: str
    username: str
    password: str


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


WCAG = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
COLOURS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
"""What of it depends on the colours alone."""
LAYOUT = {"type": "rule", "values": ["target-size", "scrollable-region-focusable"]}
"""What of it depends on where things are."""


LAID_OUT = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
"""What a part does when its size changes, as after another size of the window, comes with the frame after it."""


def axe_violations(page: Page, rules: dict[str, Any] = WCAG) -> list[str]:
    """WCAG 2.2 A and AA violations as `rule: targets`. Injected through the debugger, so the
    page's content policy stays as it is."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8") + "\n;undefined")
    page.evaluate(LAID_OUT)
    result = page.evaluate("rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", rules)
    return [
        f"{item['id']}: " + "; ".join(f"{node['target']} {node['failureSummary']}" for node in item["nodes"][:4])
        for item in result["violations"]
    ]


def drawn_to_scale(canvas: Locator) -> bool:
    """A pixel of what was drawn is a pixel of the screen: what lies under the cursor is what is drawn there."""
    canvas.page.evaluate(LAID_OUT)
    return bool(canvas.evaluate("one => one.clientWidth > 0 && one.width === one.clientWidth * devicePixelRatio"))


def picture(page: Page, name: str, *, whole: bool = True) -> None:
    """Save a picture of the whole page, or of what is in sight, if the environment asks for pictures."""
    directory = os.environ.get("E2E_SCREENSHOTS", "")
    if directory:
        Path(directory).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(directory) / f"{name}.png"), full_page=whole)
