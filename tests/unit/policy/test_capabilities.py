"""The table of what may be done: a row for each state of each machine, and whole sentences."""

from collections.abc import Mapping

import pytest

from controlplane.policy import capabilities
from controlplane.policy.capabilities import IncidentFacts, JobFacts, NodeFacts
from controlplane.policy.transitions import TABLES

ROWS: list[tuple[str, str, Mapping[str, str]]] = [
    *(("job", act, row) for act, row in capabilities.JOB.items()),
    ("job", "evict-replica", capabilities.EVICT_BY_JOB),
    *(("replica", act, row) for act, row in capabilities.REPLICA.items()),
    *(("rank", act, row) for act, row in capabilities.RANK.items()),
    *(("node", act, row) for act, row in capabilities.NODE.items()),
    *(("incident", act, row) for act, row in capabilities.INCIDENT.items()),
    *(("request", act, row) for act, row in capabilities.REQUEST.items()),
]


@pytest.mark.parametrize(("machine", "act", "row"), ROWS, ids=lambda part: part if isinstance(part, str) else "")
def test_each_act_has_a_row_for_each_state(machine: str, act: str, row: Mapping[str, str]) -> None:
    assert set(row) == set(TABLES[machine]), f"say for each state of a {machine} whether {act} may be done"


def node(**changes: object) -> NodeFacts:
    facts: dict[str, object] = {
        "name": "n1", "state": "ready", "doubt": "", "held": False, "revoked": False, "ranks": 0, "barred": False,
    }  # fmt: skip
    return NodeFacts(**(facts | changes))  # type: ignore[arg-type]


def test_a_state_without_a_row_is_no_silent_yes() -> None:
    with pytest.raises(KeyError):
        capabilities.node(node(state="asleep"))


def test_a_name_with_braces_is_a_name() -> None:
    acts = capabilities.job(JobFacts(name="a{state}b", state="pending", placed=False))
    assert acts["checkpoint"] == "job 'a{state}b' is pending: only a running job can save"


@pytest.mark.parametrize(
    ("facts", "allowed"),
    [
        (node(), {"cordon": True, "uncordon": False}),
        (node(barred=True), {"cordon": True, "uncordon": True}),
        (node(state="cordoned"), {"cordon": False, "uncordon": True}),
        (node(state="quarantined"), {"cordon": True, "uncordon": True, "confirm": True}),
        (node(state="quarantined", doubt="two of it"), {"uncordon": False, "confirm": True}),
        (node(state="quarantined", held=True), {"uncordon": False, "confirm": True}),
        (node(revoked=True), {"rotate-key": False, "restore": True}),
        (node(ranks=2), {"remove": False}),
    ],
)
def test_of_a_node(facts: NodeFacts, allowed: dict[str, bool]) -> None:
    acts = capabilities.node(facts)
    assert {act: acts[act] == "" for act in allowed} == allowed


@pytest.mark.parametrize(
    ("facts", "acts"),
    [
        (node(state="cordoned"), {"cordon"}),
        (node(), {"uncordon"}),
        (node(barred=True), set()),
        (node(held=True), set()),
        (node(state="draining"), {"drain"}),
        (node(state="draining", revoked=True), set()),
        (node(state="degraded"), set()),
    ],
)
def test_what_a_node_is_already_may_be_asked_again_unless_something_else_is_against_it(
    facts: NodeFacts, acts: set[str]
) -> None:
    assert {act for act in capabilities.NODE if capabilities.node_stands(facts, act)} == acts


@pytest.mark.parametrize(
    ("state", "outcome", "by", "why"),
    [
        ("open", "", "", ""),
        ("mitigated", "mitigated", "", ""),
        ("resolved", "recovered", "", "the incident is over, and nothing of it waits for a person"),
        ("resolved", "lost", "", ""),
        ("resolved", "lost", "user:ada", "user:ada has acknowledged it already: seen"),
    ],
)
def test_of_an_incident(state: str, outcome: str, by: str, why: str) -> None:
    facts = IncidentFacts(state=state, outcome=outcome, by=by, note="seen" if by else "")
    assert capabilities.incident(facts) == {"acknowledge": why}
