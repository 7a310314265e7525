"""Every package of every environment and image is pinned with its hashes, and every base image by
an exact tag; the scripts that keep it so say what they could not learn."""

import http.server
import re
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.house.tree import ROOT, read

sys.path.insert(0, str(ROOT / "scripts"))
import audit_pins
import lock
import pin_images
from pin_images import HUB, Image, NotReached

FILES = sorted((ROOT / "requirements").glob("*.txt"))
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)")
DIGEST = "sha256:" + "ab" * 32


def pins(path: Path) -> dict[str, str]:
    found = [_PIN.match(block) for block in lock.blocks(read(path)).values()]
    return {match[1].lower().replace("_", "-"): match[2] for match in found if match}


def declared(*extras: str) -> dict[str, str]:
    """Name to exact version ("" for any) in pyproject.toml."""
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    lines = project["dependencies"] + [line for extra in extras for line in project["optional-dependencies"][extra]]
    parts = [re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?(?:==(.+))?", line) for line in lines]
    return {match[1].lower(): match[2] or "" for match in parts if match}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_package_has_one_version_and_its_hashes(path: Path) -> None:
    blocks = lock.blocks(read(path))
    assert blocks
    for block in blocks.values():
        assert _PIN.match(block), block
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), block


def test_two_files_never_name_two_versions_of_one_package() -> None:
    versions: dict[str, set[str]] = {}
    for path in FILES:
        for name, version in pins(path).items():
            versions.setdefault(name, set()).add(version.removesuffix("+cpu"))
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


@pytest.mark.parametrize("name", sorted(lock.SETS))
def test_a_file_has_what_its_extras_name_in_the_version_they_name(name: str) -> None:
    found = pins(ROOT / "requirements" / name)
    for package, version in declared(*lock.SETS[name]).items():
        if package != "torch":
            assert found.get(package) == (version or found.get(package)), package
            assert package in found, package


def test_torch_does_not_float() -> None:
    wanted = declared("trainer")["torch"]
    assert pins(ROOT / "requirements" / "torch.txt") == {"torch": wanted}
    assert pins(ROOT / "requirements" / "torch-cpu.txt") == {"torch": f"{wanted}+cpu"}


def test_whatever_installs_a_package_checks_its_hash() -> None:
    for path in (ROOT / "Makefile", ROOT / "deploy" / "Dockerfile"):
        for line in read(path).replace("\\\n", " ").splitlines():
            for call in re.findall(r"pip install ([^&|;]*)", line):
                assert "--require-hashes" in call or "--no-build-isolation ." in call, f"{path.name}: {call}"


def test_base_images_have_exact_tags() -> None:
    texts = [read(ROOT / name) for name in pin_images.FILES]
    found = {image for text in texts for image in pin_images.images(text)}
    named = {service["image"] for service in yaml.safe_load(texts[1])["services"].values()}
    others = {name.partition("@")[0] for name in named if not name.startswith(pin_images.OURS)}
    assert {f"{image.name}:{image.tag}" for image in found} >= others
    assert len(found) == 4
    assert [image for image in found if not re.match(r"\d+\.\d+\.\d+|16\.\d+", image.tag)] == []


def test_a_known_vulnerability_is_told_with_its_remedy_and_silence_is_not_called_sound() -> None:
    answer = audit_pins.read(
        {
            "dependencies": [
                {"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]},
                {"name": "b", "version": "1", "vulns": []},
                {"name": "c", "skip_reason": "not found"},
            ]
        }
    )
    assert answer.vulnerable == ("a 1: PYSEC-1, mended in 2",)
    assert (answer.judged, answer.silent) == ({"a", "b"}, {"c"})


class Registry(http.server.BaseHTTPRequestHandler):
    """A registry that wants a token first, as Docker's does."""

    def do_HEAD(self) -> None:
        if self.headers.get("Authorization") != "Bearer anonymous":
            self.send_response(401)
            place = f"http://127.0.0.1:{self.server.server_address[1]}/token"
            self.send_header("WWW-Authenticate", f'Bearer realm="{place}",service="here",scope="pull"')
        elif self.path == "/v2/library/python/manifests/3.11.14":
            self.send_response(200)
            self.send_header("Docker-Content-Digest", DIGEST)
        else:
            self.send_response(404)
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"token": "anonymous"}')

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def registry() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_digest_of_a_tag_comes_from_its_registry(registry: str) -> None:
    assert pin_images.digest_of(Image("python", "3.11.14"), registry) == DIGEST
    with pytest.raises(NotReached, match="404"):
        pin_images.digest_of(Image("python", "none"), registry)
    with pytest.raises(NotReached):
        pin_images.digest_of(Image("python", "3.11.14"), "http://127.0.0.1:9")


def test_a_digest_is_written_behind_its_tag_and_an_unknown_one_leaves_the_line() -> None:
    text = "FROM python:3.11.14 AS base\n    image: redis:7.2.11\n    image: holdfast/node:0.1.0\n"
    once = pin_images.pinned(text, {Image("python", "3.11.14"): DIGEST})
    assert once == text.replace("3.11.14", f"3.11.14@{DIGEST}")
    assert pin_images.pinned(once, {}) == once
    assert HUB.startswith("https://")
