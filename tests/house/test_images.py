"""`make images` against a registry of version 2 on the loopback address: every digest is written where its
tag stands, what no registry gives is told and left as it was, and no file is there by half (V21)."""

import hashlib
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.house.tree import ROOT, read

sys.path.insert(0, str(ROOT / "scripts"))
import pin_images
from pin_images import Image

ORDINARY = Image("python", "3.11.14-slim-bookworm")


def manifest(path: str) -> bytes:
    """What the registry serves there."""
    return f'{{"schemaVersion": 2, "of": "{path}"}}'.encode()


def digest(path: str) -> str:
    return f"sha256:{hashlib.sha256(manifest(path)).hexdigest()}"


def path_of(image: Image) -> str:
    return f"/v2/{image.repository}/manifests/{image.tag}"


@dataclass
class Ways:
    """How the registry behaves, by path of the manifest; "" for all others."""

    by_path: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    token: str = "token"


class Server(http.server.ThreadingHTTPServer):
    """With its ways."""

    ways: Ways


class Registry(http.server.BaseHTTPRequestHandler):
    """Wants an anonymous token for the repository, then serves manifests."""

    server: Server

    def do_HEAD(self) -> None:
        self._manifest(body=False)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path != "/token":
            self._manifest(body=True)
            return
        scope = parse_qs(parts.query)["scope"][0]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f'{{"{self.server.ways.token}": "for {scope}"}}'.encode())

    def _manifest(self, *, body: bool) -> None:
        ways, path = self.server.ways, self.path
        way = ways.by_path.get(path, ways.by_path.get("", ""))
        ways.asked.append((self.command, path, self.headers.get("Accept", "")))
        repository = path.removeprefix("/v2/").partition("/manifests/")[0]
        if self.headers.get("Authorization") != f"Bearer for repository:{repository}:pull" or way == "closed":
            self.send_response(401)
            place = f"http://127.0.0.1:{self.server.server_address[1]}/token"
            challenge = f'Bearer realm="{place}",service="here",scope="repository:{repository}:pull"'
            self.send_header("WWW-Authenticate", "" if way == "no challenge" else challenge)
            self.end_headers()
        elif way == "gone":
            self.send_error(404)
        elif way == "garbage":
            self.wfile.write(b"this is no HTTP\r\n\r\n")
        elif way == "cut":
            self.close_connection = True
        else:
            self.send_response(200)
            told = {"strange": "md5:0", "silent": "", "lies": digest("/another") if body else ""}
            if said := told.get(way, digest(path)):
                self.send_header("Docker-Content-Digest", said)
            self.send_header("Content-Length", str(len(manifest(path))))
            self.end_headers()
            if body:
                self.wfile.write(manifest(path))

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def ways() -> Ways:
    return Ways()


@pytest.fixture
def registry(ways: Ways) -> Iterator[str]:
    server = Server(("127.0.0.1", 0), Registry)
    server.ways = ways
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that name images, as they are."""
    for name in pin_images.FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(read(ROOT / name))
    return tmp_path


def texts(checkout: Path) -> list[str]:
    return [read(checkout / name) for name in pin_images.FILES]


def all_images(checkout: Path) -> set[Image]:
    return {image for text in texts(checkout) for image in pin_images.images(text)}


def test_make_images_writes_every_digest_once_and_for_good(registry: str, checkout: Path, ways: Ways) -> None:
    command = ["make", "-s", "-C", str(ROOT), "-o", ".venv/.ready", "images"]
    for _ in range(2):
        done = subprocess.run(
            [*command, f"PY={sys.executable}", f"REGISTRY={registry}", f"IMAGES_ROOT={checkout}"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        written = "\n".join(texts(checkout))
        images = all_images(checkout)
        assert len(images) == 4
        for image in images:
            assert f"{image.name}:{image.tag}@{digest(path_of(image))}" in written
            assert f"{image.name}:{image.tag} {digest(path_of(image))}" in done.stdout
        assert written.count("@sha256:") == sum(len(pin_images.images(text)) for text in texts(checkout))
    assert {method for method, _, _ in ways.asked} == {"HEAD"}
    assert all("oci.image.index.v1" in accept and "manifest.list.v2" in accept for _, _, accept in ways.asked)


def test_all_but_the_digests_stays_as_it_was(registry: str, checkout: Path) -> None:
    before = texts(checkout)
    assert pin_images.main(["--registry", registry, "--root", str(checkout)]) == 0
    plain = texts(checkout)
    for image in all_images(checkout):
        plain = [text.replace(f"@{digest(path_of(image))}", "") for text in plain]
    assert plain == before
    assert sorted(path.name for path in checkout.rglob("*")) == ["Dockerfile", "deploy", "docker-compose.yml"]


@pytest.mark.parametrize("way", ["gone", "closed", "no challenge", "garbage", "cut", "strange", "lies"])
def test_what_the_registry_does_not_give_is_told_and_left(
    registry: str, checkout: Path, ways: Ways, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ways.by_path[path_of(ORDINARY)] = way
    assert pin_images.main(["--registry", registry, "--root", str(checkout)]) == 3
    told = capsys.readouterr()
    assert told.err.startswith(f"not written: {ORDINARY.name}:{ORDINARY.tag}: ") and told.err.count("\n") == 1
    written = "\n".join(texts(checkout))
    assert f"FROM {ORDINARY.name}:{ORDINARY.tag} AS base" in written
    assert all(image == ORDINARY or digest(path_of(image)) in written for image in all_images(checkout))


@pytest.mark.parametrize("token", ["token", "access_token"])
def test_a_registry_that_says_no_digest_is_taken_by_what_it_serves(
    registry: str, checkout: Path, ways: Ways, token: str
) -> None:
    ways.by_path[""], ways.token = "silent", token
    assert pin_images.main(["--registry", registry, "--root", str(checkout)]) == 0
    assert all(digest(path_of(image)) in "\n".join(texts(checkout)) for image in all_images(checkout))


def test_a_registry_out_of_reach_changes_nothing_and_names_every_image(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = texts(checkout)
    stamps = [(checkout / name).stat().st_mtime_ns for name in pin_images.FILES]
    assert pin_images.main(["--registry", "http://127.0.0.1:9", "--root", str(checkout)]) == 3
    assert capsys.readouterr().err.count("not written: ") == len(all_images(checkout))
    assert (texts(checkout), [(checkout / name).stat().st_mtime_ns for name in pin_images.FILES]) == (before, stamps)


def test_a_disk_that_fails_midway_leaves_both_files_whole(
    registry: str, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, write = texts(checkout), Path.write_text

    def full(path: Path, text: str, **options: str) -> int:
        if "docker-compose" in path.name:
            write(path, text[:100], **options)  # type: ignore[arg-type]
            raise OSError(28, "No space left on device")
        return write(path, text, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        pin_images.main(["--registry", registry, "--root", str(checkout)])
    assert texts(checkout) == before
    assert sorted(path.name for path in checkout.rglob("*")) == ["Dockerfile", "deploy", "docker-compose.yml"]
