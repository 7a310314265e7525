"""Environments that hold what a file of `requirements/` names and nothing else.

Called by the tests of this folder, and as a program by the stand-ins for `python3 -m venv` and
`pip` that the install page's commands meet. The distributions come, file by file, from the
environment of the tests, which installed the same pins by their hashes; no index is asked.
"""

import itertools
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
INSTALL_TIMEOUT_S = 120.0
_PIN = re.compile(r"^[A-Za-z0-9._-]+[^\\\n]*==[^\\\n]+", re.MULTILINE)
# torch's CPU build stands in for the build on PyPI, and needs nothing of this file.
OF_CUDA = "cuda.txt"


def pins(path: Path) -> list[Requirement]:
    """What a requirements file names for this interpreter and machine."""
    found = [Requirement(line.strip()) for line in _PIN.findall(path.read_text(encoding="ascii"))]
    return [one for one in found if one.marker is None or one.marker.evaluate()]


def site_of(venv: Path) -> Path:
    """Where its distributions are."""
    return venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def make(venv: Path) -> None:
    """An empty environment, with a `pip` that is this module."""
    interpreter = getattr(sys, "_base_executable", sys.executable)
    subprocess.run([interpreter, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=INSTALL_TIMEOUT_S)
    program = venv / "bin" / "pip"
    argv = f"'{sys.executable}' -m tests.integration.install.packages pip '{venv}'"
    program.write_text(f"#!/bin/sh\nPYTHONPATH='{ROOT}' exec {argv} \"$@\"\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def link(venv: Path, files: list[Path]) -> None:
    """Put in what these requirements files name. Raises AssertionError where the environment of the
    tests holds another version."""
    for path in files:
        if path.name == OF_CUDA and "+cpu" in distribution("torch").version:
            continue
        for pin in pins(path):
            found = distribution(pin.name)
            wanted = str(pin.specifier).removeprefix("==")
            held = found.version if "+" in wanted else found.version.partition("+")[0]
            assert held == wanted, f"{pin.name} {found.version} is installed, {path.name} names {wanted}"
            put(found, site_of(venv))


def put(found: Distribution, site: Path) -> None:
    """Its files, as its RECORD lists them, without its programs."""
    for file in found.files or ():
        if ".." in file.parts or file.is_absolute():
            continue
        target = site / file
        if target.exists():
            continue
        source = Path(str(found.locate_file(file)))
        if not source.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)


def closure(extras: tuple[str, ...]) -> list[Distribution]:
    """What pip brings for these extras of ours: their packages, and what those need, to the end.
    Raises AssertionError where the environment of the tests does not satisfy one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="ascii"))["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    waiting = [(Requirement(line), "pyproject.toml") for line in lines]
    found: dict[tuple[str, str], Distribution] = {}
    while waiting:
        wanted, who = waiting.pop()
        for extra in ("", *wanted.extras):
            if (wanted.name, extra) in found:
                continue
            held = distribution(wanted.name)
            assert wanted.specifier.contains(held.version, prereleases=True), f"{who} needs {wanted}: {held.version}"
            found[wanted.name, extra] = held
            for line in held.requires or ():
                needed = Requirement(line)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    waiting.append((needed, wanted.name))
    return list({held.name: held for held in found.values()}.values())


def pip(venv: Path, arguments: list[str]) -> int:
    """`pip install` with the options of our pages and images: of requirements files what they name, of
    a directory what the real pip makes of it, without any index; `pip check` is the real one."""
    files = [Path(value) for flag, value in itertools.pairwise(arguments) if flag in ("-r", "--requirement")]
    if files:
        assert {"install", "--require-hashes", "--no-deps"} <= set(arguments), arguments
        link(venv, files)
        return 0
    real = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), *arguments]
    real += ["--no-index"] if arguments[0] == "install" else []
    return subprocess.run(real, timeout=INSTALL_TIMEOUT_S, check=False).returncode


def main(arguments: list[str]) -> int:
    """`venv DIRECTORY`, or `pip DIRECTORY install ...`."""
    what, venv, *rest = arguments
    if what == "venv":
        make(Path(venv))
        return 0
    return pip(Path(venv), rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
