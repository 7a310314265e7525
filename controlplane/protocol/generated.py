"""Files of the repository that a program makes: written, or compared with what is on disk."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def keep(made: Mapping[Path, str], arguments: Sequence[str] | None = None, *, what: str | None = None) -> int:
    """Carries out `--write` or `--check` for files by their text (UTF-8). `arguments`: of the command line (None:
    the process's own); `what` describes the program. The exit status: 1 where a file that is checked is
    stale, each named on stderr, else 0. A wrong command line ends the process (argparse)."""
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--check", action="store_true", help="exit with 1 if a file is stale")
    choice.add_argument("--write", action="store_true", help="make it current")
    writes = parser.parse_args(arguments).write
    stale = 0
    for path, text in made.items():
        if writes:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{os.path.relpath(path)} is stale: run `make generated`\n")
            stale = 1
    return stale
