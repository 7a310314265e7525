"""`python -m controlplane.checkpoints.copying SOURCE TARGET --max-bytes N`: the plain files below one
directory into another. Run by `keep` in the sandbox, where hard links are not to be had; follows
no link, and copies no more than N bytes."""

import argparse
import os
import stat
import sys
from pathlib import Path

CHUNK_BYTES = 4 << 20
MAX_DEPTH = 8


class TooMuch(Exception):
    """What lies there is no checkpoint of the size that was reported."""


def copy(source: int, target: Path, *, left_bytes: int, depth: int = 0) -> int:
    """Into `target`, which is there; returns how many bytes of `left_bytes` are left. Raises OSError, TooMuch."""
    for name in sorted(os.listdir(source)):
        about = os.stat(name, dir_fd=source, follow_symlinks=False)
        plain = stat.S_ISREG(about.st_mode)
        if not plain and (not stat.S_ISDIR(about.st_mode) or depth >= MAX_DEPTH):
            raise TooMuch(f"{name} is a link, or lies too deep")
        flags = os.O_RDONLY | os.O_NOFOLLOW | (os.O_NONBLOCK if plain else os.O_DIRECTORY)
        below = os.open(name, flags, dir_fd=source)
        try:
            if plain:
                left_bytes = _copy_file(below, target / name, left_bytes)
            else:
                (target / name).mkdir(mode=0o755)
                left_bytes = copy(below, target / name, left_bytes=left_bytes, depth=depth + 1)
        finally:
            os.close(below)
    return left_bytes


def _copy_file(source: int, target: Path, left_bytes: int) -> int:
    with target.open("xb") as file:
        while chunk := os.read(source, CHUNK_BYTES):
            left_bytes -= len(chunk)
            if left_bytes < 0:
                raise TooMuch("it has more bytes than were reported")
            file.write(chunk)
    target.chmod(0o644)
    return left_bytes


def main() -> None:
    """Exits with 1 and a line where it cannot be copied."""
    parser = argparse.ArgumentParser(description="Copies a checkpoint's files.")
    parser.add_argument("source")
    parser.add_argument("target", type=Path)
    parser.add_argument("--max-bytes", type=int, required=True)
    options = parser.parse_args()
    source = os.open(options.source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        copy(source, options.target, left_bytes=options.max_bytes)
    except (OSError, TooMuch) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
