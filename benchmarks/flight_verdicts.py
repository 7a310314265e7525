"""How many Flight Recorder cases each analyser answers rightly: Holdfast's, and torch's own.

`python -m benchmarks flight` prints one line a case and the counts; it needs torch 2.13
(`torch.distributed.flight_recorder`), which is given every help (`trainer.second_opinion`). An
analyser has the kind right where it reports that kind, or reports nothing
where there is nothing to report; the ranks, where it names exactly those at fault.
"""

import argparse
import json
from typing import Any, NamedTuple

from benchmarks.flight_cases import CASES, Case, raw_dump
from benchmarks.report import Report
from controlplane.policy.flight import MatchState, analyse
from controlplane.protocol.flight import FlightDump, repair

QUIET = (MatchState.FULLY_MATCHED, MatchState.UNDECIDED)


class Answer(NamedTuple):
    """What an analyser says: the kind, the ranks; or how it failed."""

    state: str
    ranks: tuple[int, ...]


class Count(NamedTuple):
    """Right answers of all cases."""

    kind: int
    kind_and_ranks: int
    cases: int


def ours(case: Case) -> Answer:
    """Holdfast's analysis of what an agent would send."""
    finding = analyse(tuple(_repaired(case, rank) for rank in case.calls), tuple(range(case.ranks)))
    return Answer(str(finding.state), finding.culprits)


def torchs(case: Case) -> Answer:
    """Torch's analysis of the same dumps. Raises ImportError without torch's analyser."""
    from trainer.second_opinion import opinion

    found = opinion({f"rank{rank}": _for_torch(case, rank) for rank in case.calls})
    return Answer(found.kind, found.ranks)


def right(case: Case, answer: Answer) -> tuple[bool, bool]:
    """(the kind, the kind and the ranks)."""
    if case.state in QUIET:
        quiet = answer.state in QUIET
        return quiet, quiet
    kind = answer.state == case.state
    return kind, kind and answer.ranks == case.culprits


def count(answers: list[tuple[Case, Answer]]) -> Count:
    judged = [right(case, answer) for case, answer in answers]
    return Count(sum(kind for kind, _ in judged), sum(both for _, both in judged), len(judged))


def main(argv: list[str]) -> int:
    """Prints the table; 0 if ours are all right and at least as many as torch's."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args(argv)
    answers = {"Holdfast": [(case, ours(case)) for case in CASES], "torch": [(case, torchs(case)) for case in CASES]}
    for place, case in enumerate(CASES):
        said = {name: found[place][1] for name, found in answers.items()}
        marks = [f"{name}: {'right' if right(case, a)[1] else f'{a.state} {a.ranks}'}" for name, a in said.items()]
        print(f"{case.name:62} {marks[0]:18} {marks[1]}")
    report = Report(goal_id="flight", title="Flight Recorder cases answered rightly")
    for name, found in answers.items():
        result = count(found)
        report.add(f"{name}: the kind", "cases", [result.kind], goal=f"of {result.cases}")
        report.add(f"{name}: the kind and the ranks", "cases", [result.kind_and_ranks], goal=f"of {result.cases}")
    report.finish()
    mine, theirs = count(answers["Holdfast"]), count(answers["torch"])
    return 0 if mine.kind_and_ranks == mine.cases >= theirs.kind_and_ranks else 1


def _repaired(case: Case, rank: int) -> FlightDump:
    raw = raw_dump(case, rank)
    return repair(json.dumps(raw).encode(), rank, json.dumps(list(raw["pg_config"].values())).encode())


def _for_torch(case: Case, rank: int) -> dict[str, Any]:
    raw = raw_dump(case, rank)
    raw["entries"] = [
        e | {"state": "completed"} if e["retired"] and e["profiling_name"].startswith("gloo:") else e
        for e in raw["entries"]
    ]
    groups = {name: group | {"ranks": str(group["ranks"])} for name, group in raw["pg_config"].items()}
    return raw | {"host_name": f"host{rank}", "pg_config": groups}
