"""The page's files, compressed once when a process starts, so that no proxy has to do it and `make demo` has it too.

WhiteNoise sends a compressed file where one lies beside the other. Ours are in the package, which nobody may write: the
compressed ones lie in the state directory, named by what is in them, so that processes of two releases share it: a
quarter of a megabyte a release. Where that cannot be written the page is sent as it is.
"""

import gzip
import hashlib
import os
import tempfile
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any
from wsgiref.headers import Headers

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import StaticFile

from controlplane.runtime.logs import get

FOLDER = "static-gz"
KINDS = (".js", ".css", ".svg", ".json", ".html")
LEAST_BYTES = 1_400
"""What is shorter is one packet anyway."""
LEVEL = 9
_log = get(__name__)


class CompressedFiles(WhiteNoiseMiddleware):
    """As WhiteNoise, with the compressed files elsewhere."""

    def get_static_file(self, path: str, url: str, stat_cache: Any = None) -> StaticFile:
        """One file, and what it is as gzip."""
        packed = packed_of(Path(path), settings.STATE_DIR / FOLDER)
        if packed is None:
            return super().get_static_file(path, url, stat_cache)
        headers = Headers([])
        self.add_mime_headers(headers, path, url)
        self.add_cache_headers(headers, path, url)
        return StaticFile(path, headers.items(), encodings={"gzip": str(packed)})

    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> HttpResponse:
        """Whole: what WhiteNoise streams a web process that is asynchronous reads in one piece anyway, and warns of."""
        found = static_file.get_response(request.method, request.META)
        with found.file or nullcontext() as file:
            answer = HttpResponse(file.read() if file else b"", status=int(found.status))
        del answer["content-type"]
        for name, value in found.headers:
            answer[name] = value
        return answer


def packed_of(path: Path, folder: Path) -> Path | None:
    """The compressed file; None where that saves nothing, or cannot be written."""
    about = path.stat()
    if path.suffix not in KINDS or about.st_size < LEAST_BYTES:
        return None
    return _packed(path, folder, about.st_mtime_ns, about.st_size)


@cache
def _packed(path: Path, folder: Path, _changed_ns: int, _size: int) -> Path | None:
    """Once a process for each file as it is."""
    body = path.read_bytes()
    packed = folder / f"{hashlib.sha256(body).hexdigest()[:32]}.gz"
    try:
        if not packed.exists() or not packed.stat().st_size:
            _keep(packed, gzip.compress(body, LEVEL, mtime=0))
    except OSError as error:
        _log.warning("the page is sent as it is", file=str(path), error=str(error))
        return None
    return packed


def _keep(path: Path, data: bytes) -> None:
    """Whole or not at all, whoever does the same beside us and whenever the machine ends. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except OSError:
        Path(draft).unlink(missing_ok=True)
        raise
