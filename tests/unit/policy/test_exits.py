"""What an exit code or a signal means, in the decision's own words."""

import pytest

from controlplane.policy.exits import culprit, explain
from controlplane.protocol.states import EXIT_PEER_LOST

from .builders import change, job, only, running, signal

RULE = "replica_failure"


def ended(code: int, *, rank: int = 0, number: int = 1, seen_s: float = 999.0):
    return signal("rank_exit", number, replica=1, incarnation=1, rank=rank, value=float(code), seen_s=seen_s)


@pytest.mark.parametrize(
    ("code", "cause", "words"),
    [
        (-6, "abort", "ended by signal 6: SIGABRT: its ranks disagree on a collective's size or type"),
        (-9, "killed", "ended by signal 9: SIGKILL"),
        (-11, "segfault", "ended by signal 11: SIGSEGV: a segmentation fault in native code"),
        (16, "numerics", "ended with code 16: a gradient computed there is not finite"),
        (70, "exception", "ended with code 70: an exception ended it; the traceback is in its log"),
        (71, "peer_lost", "ended with code 71: it lost another rank of its replica"),
        (-64, "signal", "ended by signal 64: a signal ended it"),
        (134, "abort", "ended with code 134: SIGABRT"),
        (137, "killed", "ended with code 137: SIGKILL"),
        (139, "segfault", "ended with code 139: SIGSEGV"),
        (143, "terminated", "ended with code 143: SIGTERM"),
        (192, "signal", "ended with code 192: a signal ended it"),
        (201, "gpu_driver", "ended with code 201: its launcher met an error of the GPU driver"),
        (202, "pod_residue", "ended with code 202: its launcher found what an earlier pod had left"),
        (247, "out_of_memory", "ended with code 247: OOM-killed: the node or its container ran out of memory"),
        (128, "unknown", "ended with code 128: the code has no meaning known here"),
        (193, "unknown", "ended with code 193: the code has no meaning known here"),
    ],
)
def test_a_decision_says_what_ended_the_rank(code, cause, words):
    decision = only(running(signals=(ended(code),)), RULE)
    assert decision.reason_code == "rank_exit"
    assert decision.evidence["cause"] == cause
    assert decision.evidence["exit_code"] == code
    assert f"rank 0 on node-1 {words}" in decision.sentence


@pytest.mark.parametrize("code", [-11, -6, 16, 70])
def test_the_rank_that_lost_its_peer_is_not_blamed_whoever_is_told_first(code):
    victim, guilty = ended(EXIT_PEER_LOST, rank=0, number=1, seen_s=990.0), ended(code, rank=1, number=2)
    decision = only(running(signals=(victim, guilty)), RULE)
    assert f"rank 1 on node-1 {explain(code)}" in decision.sentence
    assert decision.evidence["exit_code"] == code


def test_among_equals_the_first_one_is_named():
    first, second = ended(70, rank=1, number=2, seen_s=990.0), ended(70, rank=0, number=1, seen_s=991.0)
    assert culprit((second, first)) is first
    assert culprit(()) is None


@pytest.mark.parametrize(
    ("silent_s", "cause", "said"),
    [(30.0, "frozen", "its process says nothing: it is stopped, or its interpreter is locked"), (0.4, "stuck", "")],
)
def test_a_hang_that_is_silent_is_told_apart_from_one_that_speaks(silent_s, cause, said):
    late = signal("rank_overdue", replica=1, incarnation=1, rank=1, value=30.0, threshold=5.0,
                  evidence={"silent_s": silent_s})  # fmt: skip
    decision = only(running(signals=(late,)), RULE)
    assert decision.evidence["cause"] == cause
    assert "rank 1 made no progress for 30.0 s, 5.0 s are allowed" in decision.sentence
    assert said in decision.sentence
    assert ("says nothing" in decision.sentence) == bool(said)


def unseen(**evidence):
    told = {"told": False, "cause": "out_of_memory", "hint": "the kernel's log says that its OOM killer ended it"}
    return signal("rank_exit", replica=1, incarnation=1, rank=0, value=-1.0, evidence=told | evidence)


def test_an_exit_that_nobody_saw_has_no_code_and_tells_the_strongest_hypothesis():
    decision = only(running(signals=(unseen(),)), "replica_failure")
    assert decision.evidence["exit_code"] is None
    assert decision.evidence["cause"] == "out_of_memory"
    assert "ended unseen: the kernel's log says that its OOM killer ended it" in decision.sentence
    assert "code 0" not in decision.sentence
    assert "signal" not in decision.sentence


def test_without_any_hypothesis_it_is_only_said_that_it_was_not_observed():
    decision = only(running(signals=(unseen(cause="", hint=""),)), "replica_failure")
    assert decision.evidence["cause"] == "unobserved"
    assert "ended unseen: exit not observed" in decision.sentence


def test_an_exit_that_nobody_saw_is_no_clean_end_of_a_trained_job():
    done = running(job=job(committed_step=100), signals=(unseen(),))
    assert only(done, "replica_failure").reason_code == "rank_exit"


def test_what_the_node_knows_of_a_kill_is_told_beside_the_signal():
    killed = unseen(told=True)
    killed = change(killed, value=-9.0)
    decision = only(running(signals=(killed,)), "replica_failure")
    assert decision.evidence["exit_code"] == -9
    assert decision.evidence["cause"] == "out_of_memory"
    assert "SIGKILL" in decision.sentence
    assert "OOM killer" in decision.sentence
