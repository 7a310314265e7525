"""Where Slurm and Holdfast differ about a node, and what Slurm is then asked for; pure, no row and no program."""

import itertools
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.engines.engine import IntentKind
from controlplane.engines.slurm import answers
from controlplane.engines.slurm.compare import cause, differs, wanted
from controlplane.engines.slurm.health import DRAINED, OUT_OF_SERVICE, Believed, Device, Node, reason
from controlplane.protocol.states import NodeState

UP = Believed(states=frozenset({"IDLE"}), reason="")
THEIRS = Believed(
    states=frozenset({"IDLE", "DRAIN"}), reason="fan", by="root", since=datetime(2026, 11, 30, 9, tzinfo=UTC)
)
OURS = Believed(states=frozenset({"IDLE", "DRAIN"}), reason="holdfast: cordoned. memory errors (int_1)")
DOWN = Believed(states=frozenset({"DOWN"}), reason=None)


def node(state: str = "ready", *, ranks: int = 0, connected: bool = True, why: str = "memory errors") -> Node:
    return Node("n1", state, connected, why, [Device(0, True, True)], [msgspec.Raw(b"1")] * ranks)


@pytest.mark.parametrize("piloted", [True, False])
def test_where_both_agree_nothing_is_said_and_nothing_wanted(piloted: bool) -> None:
    for one, believed in ((node(), UP), (node("cordoned"), THEIRS), (node("quarantined"), OURS)):
        assert differs(one, believed, piloted=piloted) == ""
        assert wanted(one, believed, piloted=piloted) is None


def test_a_node_out_of_service_is_marked_bad_once_nothing_runs_on_it() -> None:
    assert wanted(node("quarantined"), UP, piloted=True) is IntentKind.MARK_BAD
    assert wanted(node("quarantined", ranks=1), UP, piloted=True) is None
    assert wanted(node("draining"), UP, piloted=True) is None
    assert differs(node("quarantined"), UP, piloted=True) == (
        "Holdfast has it quarantined: memory errors; Slurm would still give it jobs. It is drained in Slurm next."
    )
    assert differs(node("cordoned", ranks=1), UP, piloted=False).endswith("once nothing runs on it.")


def test_what_slurm_took_out_is_told_with_its_reason_and_who_gives_it_back() -> None:
    told = differs(node(), THEIRS, piloted=False)
    assert told.startswith("Slurm gives it no job (DRAIN+IDLE: fan, root, 2026-11-30 09:00:00 UTC); Holdfast counts it")
    assert told.endswith("who drained it gives it back.")
    assert differs(node(), OURS, piloted=True).endswith("undone once the node is known to be well.")
    assert "a reason that cannot be read" in differs(node(), DOWN, piloted=False)


def test_only_a_drain_of_ours_on_a_node_that_is_well_is_cleared() -> None:
    assert wanted(node(), OURS, piloted=False) is IntentKind.CLEAR
    assert wanted(node(connected=False), OURS, piloted=False) is None, "its agent has to say that it is well"
    assert wanted(node(connected=False), OURS, piloted=True) is IntentKind.CLEAR, "none speaks there: people do"
    assert wanted(node(), THEIRS, piloted=True) is None


def test_a_silent_agent_differs_where_one_should_be_there() -> None:
    silent = node(connected=False)
    assert "pilot 9_1" in differs(silent, UP, piloted=True, pilot="9_1")
    assert differs(silent, UP, piloted=True) == "", "no pilot is there, so no agent"
    assert "its agent is not connected" in differs(silent, UP, piloted=False)


@given(
    state=st.sampled_from([*NodeState]), connected=st.booleans(), ranks=st.integers(0, 1), piloted=st.booleans(),
    states=st.frozensets(st.sampled_from(["IDLE", "ALLOCATED", "DOWN", "FAIL", *DRAINED]), min_size=1),
    why=st.sampled_from(["", None, "fan", "holdfast: x", "Holdfast: x", " holdfast: x"]),
)  # fmt: skip
def test_a_drain_of_somebody_elses_is_never_touched_and_a_node_with_ranks_never_drained(
    state: str, connected: bool, ranks: int, piloted: bool, states: frozenset[str], why: str | None
) -> None:
    one, believed = node(state, ranks=ranks, connected=connected), Believed(states=states, reason=why)
    kind = wanted(one, believed, piloted=piloted)
    if kind is IntentKind.MARK_BAD:
        assert state in OUT_OF_SERVICE and not ranks and states.isdisjoint({*DRAINED, "DOWN", "FAIL"})
    if kind is IntentKind.CLEAR:
        assert state not in OUT_OF_SERVICE and why == "holdfast: x" and not states.isdisjoint(DRAINED)


def test_the_tag_of_an_intent_survives_a_long_reason() -> None:
    text = reason("cordoned. " + "memory " * 60, "int_1")
    assert text.startswith("holdfast: cordoned.") and text.endswith("(int_1)") and len(text) <= 160
    assert cause(Believed(states=frozenset({"DRAIN"}), reason=text)).startswith("DRAIN: holdfast: cordoned.")


HEADER = "JOBID|ARRAY_JOB_ID|ARRAY_TASK_ID|STATE|USER|START_TIME|END_TIME|NODELIST|COMMENT|REASON\n"
RUNS = "2|1|1|RUNNING|ada|2026-11-30T20:00:17|2026-11-30T20:10:17|n6|holdfast:server=https://a;grace_s=45|None\n"
WAITS = "1|1|4|PENDING|ada|N/A|N/A|||(launch failed requeued held) a|b\n"


def test_pilots_are_read_with_their_ends_and_reasons() -> None:
    found = answers.pilots(HEADER + RUNS + WAITS + "x|y\n" + RUNS.replace("RUNNING", "running"))
    assert found is not None and len(found) == 2
    runs, waits = found
    assert (runs.array, runs.index, runs.node, runs.server, runs.grace_s) == ("1", 1, "n6", "https://a", 45)
    assert runs.ends_at == datetime(2026, 11, 30, 20, 10, 17, tzinfo=UTC) and runs.reason == ""
    assert (waits.reason, waits.node, waits.starts_at) == ("(launch failed requeued held) a|b", "", None)
    assert answers.pilots(HEADER) == ()


@given(cut=st.integers(0, len(HEADER + RUNS + WAITS) - 1))
def test_an_answer_about_pilots_that_is_cut_within_a_line_is_no_news(cut: int) -> None:
    text = (HEADER + RUNS + WAITS)[:cut]
    whole = {len("".join(lines)) for lines in itertools.accumulate([[HEADER], [RUNS], [WAITS]])}
    assert (answers.pilots(text) is None) == (cut not in whole)


@given(text=st.text(max_size=400))
def test_no_text_is_an_error(text: str) -> None:
    assert answers.pilots(text) is None
    assert answers.all_believed(text) == {} and answers.throttle(text) is None


def test_an_arrays_throttle_is_read_only_where_every_element_says_the_same() -> None:
    assert answers.throttle("JobId=1 ArrayTaskThrottle=4 JobName=x\nJobId=2 ArrayTaskThrottle=4 JobName=x\n") == 4
    assert answers.throttle("JobId=1 ArrayTaskThrottle=4 JobName=x\nJobId=2 ArrayTaskThrottle=3 JobName=x\n") is None
    assert answers.throttle("") is None
