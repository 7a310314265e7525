"""What the benchmark of kills calls lost and doubled."""

from benchmarks.kills import differences
from controlplane.bench.stack import Shape

SENT = {("a", 0): 1, ("b", 3): 2}


def test_what_was_sent_and_is_stored_as_often_is_no_difference() -> None:
    assert differences(SENT, dict(SENT)) == []


def test_a_lost_a_doubled_and_a_strangers_xid_are_told() -> None:
    assert differences(SENT, {("b", 3): 3, ("c", 1): 1}) == [
        "1 XIDs of device 0 of a are 0 findings",
        "2 XIDs of device 3 of b are 3 findings",
        "0 XIDs of device 1 of c are 1 findings",
    ]


def test_processes_of_a_kind_have_names_of_their_own_and_the_first_the_usual_one() -> None:
    names = Shape(webs=2, sentinels=1, workers=2, beats=3).names()
    assert names == ("web-1", "web-2", "sentinel", "worker", "worker-2", "beat", "beat-2", "beat-3")
