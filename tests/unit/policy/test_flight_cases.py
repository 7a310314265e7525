"""Every known way for collectives to go wrong, each with its answer: the kind and the ranks."""

import json

import pytest

from benchmarks.flight_cases import CASES, Case, raw_dump
from controlplane.policy.flight import FlightFinding, analyse
from controlplane.protocol.flight import FlightDump, decode_dump, encode_dump, repair


def dumps_of(case: Case) -> tuple[FlightDump, ...]:
    """As they reach the server: repaired by the agent, through its JSON."""
    found = []
    for rank in case.calls:
        raw = raw_dump(case, rank)
        groups = [{"name": g["name"], "desc": g["desc"], "ranks": g["ranks"]} for g in raw["pg_config"].values()]
        text = encode_dump(repair(json.dumps(raw).encode(), rank, json.dumps(groups).encode()), 100_000)
        found.append(decode_dump(text))
    return tuple(found)


def verdict(case: Case, dumps: tuple[FlightDump, ...]) -> FlightFinding:
    return analyse(dumps, tuple(range(case.ranks)))


def test_there_are_as_many_cases_as_the_comparison_needs() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 38


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_verdict_is_the_truth(case: Case) -> None:
    finding = verdict(case, dumps_of(case))
    assert (finding.state, finding.culprits) == (case.state, case.culprits), finding.sentence


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_order_in_which_dumps_arrive_changes_nothing(case: Case) -> None:
    dumps = dumps_of(case)
    assert verdict(case, dumps) == verdict(case, dumps[::-1])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_missing_dump_never_accuses_its_rank(case: Case) -> None:
    for dark in case.calls:
        finding = verdict(case, tuple(dump for dump in dumps_of(case) if dump.rank != dark))
        assert dark not in finding.culprits, finding.sentence
        assert dark in finding.missing_dumps
