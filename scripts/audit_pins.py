"""Is a pinned package known to be vulnerable? Part of `make check`, where the network allows it.

Asks PyPI's advisory database through pip-audit about every pin of every environment. A known
vulnerability fails the check, with the version that mends it. A pin that the network says nothing
about is counted as not checked, never as sound. Exit codes: 0 none known, 1 some are.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FILES = ("lock.txt", "test.txt", "torch.txt", "cuda.txt", "server.txt", "node.txt")
TIMEOUT_S = 120.0
# Accepted for a reason; each names its advisory, why it does not reach us, and until when.
ACCEPTED: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Answer:
    """What was learned: `vulnerable` sentences, names judged, and names nothing was said about."""

    vulnerable: tuple[str, ...]
    judged: frozenset[str]
    silent: frozenset[str]


def read(report: dict[str, Any]) -> Answer:
    """pip-audit's JSON."""
    vulnerable, judged, silent = [], set(), set()
    for package in report["dependencies"]:
        name = str(package["name"])
        if "skip_reason" in package:
            silent.add(name)
            continue
        judged.add(name)
        for one in package["vulns"]:
            if one["id"] not in ACCEPTED:
                mended = ", ".join(one["fix_versions"]) or "no version yet"
                vulnerable.append(f"{name} {package['version']}: {one['id']}, mended in {mended}")
    return Answer(tuple(vulnerable), frozenset(judged), frozenset(silent))


def ask(path: Path) -> Answer | str:
    """Of one file; a sentence where nothing could be asked."""
    argv = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--format", "json"]
    argv += ["--progress-spinner", "off", "--requirement", str(path)]
    try:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        return read(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT_S:.0f} s"
    except (OSError, ValueError, KeyError):
        return (done.stderr.strip().splitlines() or ["no answer"])[-1][:200]


def main() -> int:
    """Ask, tell, judge."""
    vulnerable: set[str] = set()
    judged: set[str] = set()
    silent: set[str] = set()
    for name in FILES:
        answer = ask(ROOT / "requirements" / name)
        if isinstance(answer, str):
            print(f"NOT CHECKED: pins of requirements/{name}: {answer}")
            continue
        vulnerable |= set(answer.vulnerable)
        judged |= answer.judged
        silent |= answer.silent
    silent -= judged
    if silent:
        print(f"NOT CHECKED: {len(silent)} of {len(silent | judged)} pins, the index says nothing about them")
    print(f"{len(judged)} pins checked, {len(vulnerable)} known to be vulnerable")
    for sentence in sorted(vulnerable):
        print(sentence)
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
