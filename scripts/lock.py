"""`make lock`: pin every package of every environment with its hashes, from pyproject.toml.

    server.txt   the image of the control plane          node.txt   that of agents and trainers
    lock.txt     demo, checks and tests                  test.txt   what some tests add to it
    docs.txt     the site made of docs/
    torch.txt    torch as PyPI has it, for CUDA          cuda.txt   what that build needs
    torch-cpu.txt  torch's CPU build

Run by a maintainer after a change of pyproject.toml; needs a package index. Versions that are
pinned stay as they are unless `--upgrade` is given. Every file is complete, so that it is
installed with `--require-hashes --no-deps`: nothing that is not in it can come along.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
SETUPTOOLS = "setuptools==84.2.1"
# torch's CPU build is not on PyPI but on an index of its own (download.pytorch.org/whl/cpu). One
# hash for each interpreter that it was taken into use with; others get the build on PyPI.
CPU_BUILDS = {
    "cp311, manylinux_2_28_x86_64": "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
}
SETS = {
    "server.txt": ("server", "cli"),
    "node.txt": ("agent", "trainer"),
    "lock.txt": ("server", "agent", "cli", "trainer", "dev"),
    "test.txt": ("test",),
    "docs.txt": ("docs",),
}
_OF_CUDA = re.compile(r"(nvidia-(?!ml-py)|cuda-|triton\b)")
_TORCH = re.compile(r"torch==(\S+)")
Blocks = dict[str, str]


def compiled(extras: tuple[str, ...], old: Path | None) -> Blocks:
    """Name to the lines of it, hashes and all, of what these extras need."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "build.in"
        wanted.write_text(SETUPTOOLS + "\n")
        argv = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"]
        argv += ["--no-header", "--no-annotate", "pyproject.toml", str(wanted)]
        argv += [word for extra in extras for word in ("--extra", extra)]
        argv += ["--constraint", str(old)] if old is not None else []
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"uv could not resolve {', '.join(extras)}:\n{done.stderr}")
    return blocks(done.stdout)


def blocks(text: str) -> Blocks:
    """A requirements file by package."""
    found: Blocks = {}
    for line in text.splitlines():
        if line.strip().startswith("#") or not line.strip():
            continue
        if not line.startswith(" "):
            name = re.split(r"[=\[ ;]", line)[0]
            found[name] = ""
        found[name] += line.rstrip() + "\n"
    return found


def cpu_build(block: str) -> str:
    """torch's CPU build at the version that stands in the lines of PyPI's."""
    version = _TORCH.match(block)
    assert version is not None, "torch is pinned"
    hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in CPU_BUILDS.values())
    return f"torch=={version[1]}+cpu{hashes}\n"


def write(name: str, packages: Blocks, why: str) -> None:
    """One file, sorted."""
    head = f"# {why}\n# Made by scripts/lock.py from pyproject.toml; not edited by hand.\n"
    (FOLDER / name).write_text(head + "".join(packages[key] for key in sorted(packages)), encoding="ascii")
    print(f"{name}: {len(packages)} packages")


def main() -> int:
    """Write all files."""
    parser = argparse.ArgumentParser(description="Pin every package with its hashes.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that pyproject.toml allows")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old.txt"
        pinned = [
            line
            for path in sorted(FOLDER.glob("*.txt"))
            if path.name != "torch-cpu.txt"
            for line in re.findall(r"^[^\s#=]+==[^\s;\\]+", path.read_text(), re.M)
        ]
        old.write_text("\n".join(sorted(set(pinned))) + "\n")
        found = {name: compiled(extras, None if options.upgrade else old) for name, extras in SETS.items()}
    whole = found["lock.txt"]
    write("torch.txt", {"torch": whole["torch"]}, "torch as PyPI has it; on Linux it wants cuda.txt.")
    write("torch-cpu.txt", {"torch": cpu_build(whole["torch"])}, "torch's CPU build; not on PyPI.")
    cuda = {name: block for name, block in whole.items() if _OF_CUDA.match(name)}
    write("cuda.txt", cuda, "What torch's CUDA build needs, and its CPU build does not.")
    for name, packages in found.items():
        kept = {key: block for key, block in packages.items() if key != "torch" and not _OF_CUDA.match(key)}
        write(name, kept, f"Everything of the extras {', '.join(SETS[name])}; torch has files of its own.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
