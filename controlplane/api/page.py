"""The page: one small HTML document that names the bundle's files, for `/` and for every
address of the client's router. Nothing is inline, so the content policy forbids it."""

import json
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.templatetags.static import static
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_safe

BUNDLE = Path(__file__).parent / "static" / "ui"
MANIFESTS = (BUNDLE / "manifest.json", BUNDLE / ".vite" / "manifest.json")
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self' {socket}; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_MISSING = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Holdfast</title>
<p>The page's bundle is not installed. The API works: see <a href="/api/v1/openapi.json">openapi.json</a>.</p></html>"""


@require_safe
@ensure_csrf_cookie
def index(request: HttpRequest, path: str = "") -> HttpResponse:
    """The document; 503 with a hint where the bundle is missing."""
    html = _document(*_stamp())
    response = HttpResponse(html or _MISSING, status=200 if html else 503)
    response["Content-Security-Policy"] = POLICY.format(socket=_own_socket(request))
    response["Cache-Control"] = "no-cache"
    return response


def _own_socket(request: HttpRequest) -> str:
    """The live socket's origin, which older browsers do not count as 'self'. Django has checked
    the host against ALLOWED_HOSTS and its alphabet."""
    return f"{'wss' if request.is_secure() else 'ws'}://{request.get_host()}"


def _stamp() -> tuple[Path | None, float]:
    """Which manifest there is, and its age: a rebuilt bundle needs no restart."""
    for path in MANIFESTS:
        if path.is_file():
            return path, path.stat().st_mtime
    return None, 0.0


@lru_cache(maxsize=2)
def _document(manifest: Path | None, modified_s: float) -> str | None:
    if manifest is None:
        return None
    chunks: dict[str, dict[str, Any]] = json.loads(manifest.read_text())
    entry = next((chunk for chunk in chunks.values() if chunk.get("isEntry")), None)
    if entry is None:
        return None
    styles, preloads = list(entry.get("css", [])), []
    for name in entry.get("imports", []):
        chunk = chunks[name]
        styles += chunk.get("css", [])
        preloads.append(chunk["file"])
    lines = [f'<link rel="stylesheet" href="{_url(name)}">' for name in dict.fromkeys(styles)]
    lines += [f'<link rel="modulepreload" href="{_url(name)}">' for name in preloads]
    icon = next((name for name in ("favicon.svg", "icon.svg") if (BUNDLE / name).is_file()), None)
    if icon:
        lines.append(f'<link rel="icon" href="{_url(icon)}" type="image/svg+xml">')
    # theme.js, where the bundle has one, runs before the first paint: no flash of the other theme.
    if (BUNDLE / "theme.js").is_file():
        lines.append(f'<script src="{_url("theme.js")}"></script>')
    head = "\n".join(lines)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Holdfast</title>
{head}
</head>
<body>
<div id="root"></div>
<script type="module" src="{_url(entry["file"])}"></script>
<noscript>Holdfast's page needs JavaScript. The same is in the API and in the command line.</noscript>
</body>
</html>
"""


def _url(name: str) -> str:
    return escape(static(f"ui/{name}"), quote=True)
