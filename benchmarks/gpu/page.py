"""The report of a check: one table a part, with what was not seen said. Standard library alone."""

import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`state` is held, failed or "not here" (`why` says why); rows are (what, value, note)."""

    title: str
    took_s: float
    state: str
    rows: Sequence[Sequence[str]]
    why: str


def page(parts: Sequence[Part], *, cpu: bool) -> str:
    """Markdown."""
    lines = ["# What was seen on a GPU", "", "Written by `make gpu-check` (`benchmarks/gpu`).", ""]
    if cpu:
        lines += ["No card was seen: this is the half that runs on a CPU, with gloo and simulated devices.", ""]
    lines += [f"- {name}: {value}" for name, value in machine().items()]
    for part in parts:
        lines += ["", f"## {part.title}: {part.state}", "", f"Took {part.took_s:.0f} s."]
        if part.why:
            lines += ["", *(f"    {line}" for line in part.why.splitlines())]
        if part.rows:
            lines += ["", "| what | value | note |", "|---|---|---|"]
            lines += ["| " + " | ".join(_cell(text) for text in row) + " |" for row in part.rows]
    return "\n".join(lines) + "\n"


def machine() -> dict[str, str]:
    """Where this ran; without names of hosts and people."""
    revision = _said("git", "describe", "--always", "--dirty")
    return {
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%MZ"),
        "revision": revision or "not known",
        "card": _said("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader") or "none",
        "python": f"{platform.python_version()} ({platform.machine()}), {os.cpu_count()} cores",
        "torch": _said(
            sys.executable, "-c", "import torch; print(torch.__version__, 'CUDA', torch.version.cuda, end='')"
        )
        or "not known",
    }


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _cell(text: object) -> str:
    return str(text).replace("|", "/").replace("\n", " ")[:200]
