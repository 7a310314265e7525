"""`make images`: write the digest of each base image behind its tag, part of a release.

Reads deploy/Dockerfile and docker-compose.yml, asks each image's registry for the digest of its
tag, and writes `name:tag@sha256:...` in its place. An image whose registry cannot be reached
keeps its line and is named; nothing is guessed, and no file is ever there by half. Exit codes: 0 all
are written, 3 some are not.
"""

import argparse
import hashlib
import http.client
import json
import os
import re
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ("deploy/Dockerfile", "docker-compose.yml")
OURS = "holdfast/"
HUB = "https://registry-1.docker.io"
TIMEOUT_S = 15.0
MAX_BYTES = 4 * 2**20
ACCEPT = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "docker.distribution.manifest.list.v2",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.v2",
    )
)
_IMAGE = re.compile(
    r"^(?P<head>FROM |\s+image: )(?P<name>[a-z0-9./_-]+):(?P<tag>[A-Za-z0-9._-]+)(?P<digest>@sha256:[0-9a-f]{64})?",
    re.MULTILINE,
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class NotReached(Exception):
    """The registry gave no digest."""


@dataclass(frozen=True, slots=True)
class Image:
    """`name` as the files write it."""

    name: str
    tag: str

    @property
    def repository(self) -> str:
        """As the registry calls it: official images are under `library/`."""
        return self.name if "/" in self.name else f"library/{self.name}"


def images(text: str) -> set[Image]:
    """Every image of others that the text names."""
    found = (Image(match["name"], match["tag"]) for match in _IMAGE.finditer(text))
    return {image for image in found if not image.name.startswith(OURS)}


def pinned(text: str, digests: dict[Image, str]) -> str:
    """The text with each image's digest behind its tag."""

    def line(match: re.Match[str]) -> str:
        digest = digests.get(Image(match["name"], match["tag"]))
        known = f"@{digest}" if digest else match["digest"] or ""
        return f"{match['head']}{match['name']}:{match['tag']}{known}"

    return _IMAGE.sub(line, text)


def digest_of(image: Image, registry: str = HUB) -> str:
    """`sha256:...` of the tag's index: as the registry says it, and where it says none, of what it
    serves. Raises NotReached."""
    said, token, _ = _manifest(image, registry, "HEAD", "")
    if not said:
        said, _, served = _manifest(image, registry, "GET", token)
        own = f"sha256:{hashlib.sha256(served).hexdigest()}"
        if said not in ("", own):
            raise NotReached(f"{image.name}:{image.tag}: the registry serves another manifest than its digest says")
        said = own
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", said):
        raise NotReached(f"{image.name}:{image.tag}: the registry gave no digest")
    return said


def _manifest(image: Image, registry: str, method: str, token: str) -> tuple[str, str, bytes]:
    """Its digest as the registry says it, the token it took, and what came. Raises NotReached."""
    url = f"{registry}/v2/{image.repository}/manifests/{image.tag}"
    for _ in range(2):
        request = urllib.request.Request(url, method=method, headers={"Accept": ACCEPT})  # noqa: S310 - a registry
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                return answer.headers.get("Docker-Content-Digest", ""), token, answer.read(MAX_BYTES)
        except urllib.error.HTTPError as error:
            if error.code == 401 and not token:
                token = _token(image, error.headers.get("WWW-Authenticate", ""))
                continue
            raise NotReached(f"{image.name}:{image.tag}: the registry answers {error.code}") from error
        except (OSError, http.client.HTTPException) as error:
            said = " ".join(str(error).split()) or type(error).__name__
            raise NotReached(f"{image.name}:{image.tag}: {said}") from error
    raise NotReached(f"{image.name}:{image.tag}: the registry wants credentials")


def _token(image: Image, challenge: str) -> str:
    """An anonymous token from where the registry says. Raises NotReached."""
    said = dict(_CHALLENGE.findall(challenge))
    try:
        url = f"{said['realm']}?service={said.get('service', '')}&scope={said.get('scope', '')}"
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310
            given = json.loads(answer.read(MAX_BYTES))
            return str(given.get("token") or given["access_token"])
    except (OSError, ValueError, KeyError, AttributeError, http.client.HTTPException) as error:
        raise NotReached(f"{image.name}:{image.tag}: no token from the registry: {error}") from error


def replace(texts: dict[Path, str]) -> None:
    """Each file is the old one or the new one, whenever this ends. Raises OSError."""
    ready = []
    try:
        for path, text in texts.items():
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            ready.append((beside, path))
            beside.write_text(text, encoding="ascii")
            beside.chmod(path.stat().st_mode & 0o777)
        for beside, path in ready:
            beside.replace(path)
    finally:
        for beside, _ in ready:
            beside.unlink(missing_ok=True)


def main(argv: list[str] | None = None) -> int:
    """Ask for all, write what is known."""
    parser = argparse.ArgumentParser(description="Write the digests of the base images.")
    parser.add_argument("--registry", default=HUB, help="a mirror of the images")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout whose files are written")
    options = parser.parse_args(argv)
    texts = {options.root / name: (options.root / name).read_text(encoding="ascii") for name in FILES}
    digests: dict[Image, str] = {}
    missing = 0
    for image in sorted({one for text in texts.values() for one in images(text)}, key=lambda one: one.name):
        try:
            digests[image] = digest_of(image, options.registry.rstrip("/"))
            print(f"{image.name}:{image.tag} {digests[image]}")
        except NotReached as error:
            missing += 1
            print(f"not written: {error}", file=sys.stderr)
    new = {path: pinned(text, digests) for path, text in texts.items()}
    replace({path: text for path, text in new.items() if text != texts[path]})
    return 3 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
