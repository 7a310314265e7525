"""What ranks told of a step says the same packed and unpacked, and packed its length does not grow with replicas."""

import json

from hypothesis import given
from hypothesis import strategies as st

from controlplane.changes.due.course import hashes_equal, ledger
from controlplane.changes.packing import Detail, ids_in_words, ids_of, packed, packed_whole, unpacked

IDS = st.lists(st.integers(0, 40), max_size=12)
REPLICAS = st.integers(0, 9).map(str)
HASHES = st.sampled_from(["aa", "bb", "cc"])
DETAILS = st.builds(
    Detail,
    micro_batches=st.dictionaries(REPLICAS, IDS, max_size=6),
    trained=st.none() | IDS,
    parameter_hashes=st.dictionaries(REPLICAS, st.dictionaries(REPLICAS, HASHES, min_size=1, max_size=6), max_size=4),
)


def of_job(replicas: int, gpus: int = 8, ids_each: int = 4) -> Detail:
    """A step of which every replica tells the same."""
    return Detail(
        micro_batches={str(r): [r + replicas * i for i in range(ids_each)] for r in range(replicas)},
        trained=list(range(replicas * ids_each)),
        parameter_hashes={str(g): {str(r): f"{g:064x}" for r in range(replicas)} for g in range(gpus)},
    )


@given(st.lists(st.integers(0, 10_000)))
def test_numbers_keep_their_sequence(ids: list[int]) -> None:
    assert ids_of(ids_in_words(ids)) == ids


def test_ranges_and_strides_are_said_as_such() -> None:
    assert ids_in_words([*range(2048)]) == "0-2047"
    assert ids_in_words([3, 11, 19, 27, 5, 4]) == "3-27:8,5,4"
    assert ids_in_words([7, 7, 7]) == "7,7,7", "each as often as it was trained"


@given(DETAILS)
def test_what_is_packed_is_what_was_told(step: Detail) -> None:
    again = unpacked(json.loads(json.dumps(packed(step))))
    assert again == step
    for rank, by_replica in step.parameter_hashes.items():
        assert next(iter(again.parameter_hashes[rank].values())) == next(iter(by_replica.values()))


@given(DETAILS)
def test_what_is_judged_of_a_packed_step_is_what_the_ranks_say(step: Detail) -> None:
    whole = packed_whole(step)
    assert ids_of(whole["held"]) == ledger(step)
    assert whole["equal"] == hashes_equal(step)
    assert ledger(unpacked(whole)) == ledger(step)


@given(st.lists(DETAILS, max_size=4))
def test_parts_together_tell_what_was_told_one_after_the_other(parts: list[Detail]) -> None:
    at_once = Detail()
    for part in parts:
        at_once.micro_batches |= part.micro_batches
        at_once.trained = at_once.trained if part.trained is None else part.trained
        for rank, by_replica in part.parameter_hashes.items():
            at_once.parameter_hashes[rank] = {**at_once.parameter_hashes.get(rank, {}), **by_replica}
    assert unpacked(*map(packed, parts)) == at_once


def test_its_length_does_not_grow_with_the_replicas() -> None:
    few, many = (len(json.dumps(packed_whole(of_job(replicas)))) for replicas in (16, 2048))
    assert many < few + 200
    assert many < 1_200


def test_one_replica_that_differs_is_kept_whole() -> None:
    step = of_job(2048)
    step.parameter_hashes["3"]["77"] = "f" * 64
    step.micro_batches["9"] = [5, 5]
    whole = packed_whole(step)
    assert unpacked(whole) == step
    assert whole["equal"] is False
    assert len(json.dumps(whole)) < 1_600
