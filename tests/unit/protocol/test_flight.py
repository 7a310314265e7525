"""Flight Recorder dumps: repaired, bounded, and refused when they make no sense."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.protocol.errors import MalformedFrame
from controlplane.protocol.flight import FlightDump, FlightEntry, FlightGroup, decode_dump, encode_dump, repair

GROUPS = json.dumps([{"name": "0", "desc": "tp", "ranks": [0, 1]}]).encode()
RAW = {
    "collective_seq_id": 1, "p2p_seq_id": 4, "is_p2p": False, "process_group": ["0", "tp"], "retired": True,
    "profiling_name": "nccl:all_reduce", "state": "scheduled", "input_sizes": [[2, 3]], "output_sizes": [[2, 3]],
    "input_dtypes": ["Float"], "output_dtypes": ["Float"], "frames": [{"name": "f"}], "time_created_ns": 1,
}  # fmt: skip


def dump_of(*entries: dict) -> bytes:
    return json.dumps({"version": "2.10", "entries": list(entries), "pg_config": {"": {}}}).encode()


def test_the_groups_come_back() -> None:
    dump = repair(dump_of(RAW, RAW | {"retired": False, "state": "started"}), 1, GROUPS)
    assert dump.groups == (FlightGroup("0", "tp", (0, 1)),)
    assert dump.entries[0].operation == "all_reduce"
    assert dump.backends == ("nccl",)


@pytest.mark.parametrize(
    ("backend", "state", "retired", "kept", "given_up"),
    [
        ("nccl", "completed", True, "completed", False),
        ("nccl", "started", True, "started", True),
        ("nccl", "scheduled", True, "scheduled", True),
        ("nccl", "started", False, "started", False),
        ("gloo", "scheduled", True, "ended", False),
        ("gloo", "scheduled", False, "scheduled", False),
    ],
)
def test_retired_is_not_completed(backend: str, state: str, retired: bool, kept: str, given_up: bool) -> None:
    raw = RAW | {"profiling_name": f"{backend}:all_reduce", "state": state, "retired": retired}
    (entry,) = repair(dump_of(raw), 1, GROUPS).entries
    assert (entry.state, entry.given_up) == (kept, given_up)


def test_point_to_point_operations_are_numbered_apart() -> None:
    (entry,) = repair(dump_of(RAW | {"is_p2p": True}), 0, GROUPS).entries
    assert (entry.number, entry.p2p) == (4, True)


def test_groups_nobody_named_are_left_out() -> None:
    assert repair(dump_of(RAW | {"process_group": ["", ""]}), 0, GROUPS).entries == ()
    assert repair(dump_of(RAW), 0, b"") == FlightDump(0, (), ())


@pytest.mark.parametrize("text", [b"", b"[]", b'{"entries": [{}]}', b"\xff", b'{"entries": 3}'])
def test_nonsense_is_refused_with_the_rank_it_came_from(text: bytes) -> None:
    with pytest.raises(MalformedFrame, match="Flight Recorder of rank 7"):
        repair(text, 7, GROUPS)


ENTRIES = st.builds(
    FlightEntry,
    group=st.just("0"),
    number=st.integers(1, 10**6),
    operation=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30),
    input_sizes=st.just(((8,),)),
    output_sizes=st.just(()),
    input_dtypes=st.just(("Float",)),
    output_dtypes=st.just(()),
    state=st.sampled_from(["scheduled", "started", "completed"]),
    p2p=st.booleans(),
)


@given(st.lists(ENTRIES, max_size=60), st.integers(150, 4000))
def test_a_dump_fits_and_keeps_the_newest(entries: list[FlightEntry], max_chars: int) -> None:
    calls = [msgspec.structs.replace(entry, number=number, p2p=False) for number, entry in enumerate(entries, 1)]
    dump = FlightDump(1, (FlightGroup("0", "tp", (0, 1)),), tuple(calls))
    text = encode_dump(dump, max_chars)
    assert len(text) <= max_chars
    kept = decode_dump(text)
    assert kept.entries == tuple(calls[len(calls) - len(kept.entries) :])
    assert kept.forgotten == (len(kept.entries) < len(calls))
    assert len(kept.entries) == len(calls) or len(text) > max_chars // 4 or len(calls) < 8


def _calls(group: str, operations: int, numbers: range) -> tuple[FlightEntry, ...]:
    """Coalesced ones of so many operations each."""
    entry = FlightEntry(group, 0, "all_reduce", ((8,),), (), ("Float",), (), "completed")
    return tuple(msgspec.structs.replace(entry, number=number) for number in numbers for _ in range(operations))


def test_the_newest_calls_of_a_group_outlast_the_many_of_another() -> None:
    """Data parallel ranks meet once a step, those of a tensor thousands of times."""
    rare, many = _calls("1", 1, range(7, 10)), _calls("0", 1, range(5000, 6000))
    groups = (FlightGroup("0", "tp", (0, 1)), FlightGroup("1", "dp", (0, 1)))
    kept = decode_dump(encode_dump(FlightDump(1, groups, (*rare, *many)), 8_000))
    assert [entry.number for entry in kept.entries if entry.group == "1"] == [7, 8, 9]
    assert kept.entries[-1].number == 5999
    assert kept.forgotten


def test_a_coalesced_call_is_kept_or_dropped_with_all_its_operations() -> None:
    dump = FlightDump(1, (FlightGroup("0", "tp", (0, 1)),), _calls("0", 7, range(1, 100)))
    for max_chars in range(1_000, 9_000, 500):
        kept = decode_dump(encode_dump(dump, max_chars)).entries
        assert len(kept) % 7 == 0


def test_a_full_recorder_has_forgotten_something() -> None:
    assert not repair(dump_of(RAW | {"record_id": 0}), 0, GROUPS).forgotten
    assert repair(dump_of(RAW | {"record_id": 1}), 0, GROUPS).forgotten


def test_what_nccl_records_where_a_rank_has_no_tensor_is_left_out() -> None:
    leaf = {"output_sizes": [[0]], "output_dtypes": ["UNKNOWN_SCALAR"]}
    (entry,) = repair(dump_of(RAW | {"profiling_name": "nccl:gather"} | leaf), 0, GROUPS).entries
    assert (entry.input_sizes, entry.output_sizes, entry.output_dtypes) == (((2, 3),), (), ())


def test_what_nccl_calls_the_inputs_of_a_scatter_are_its_outputs() -> None:
    root = {"profiling_name": "nccl:scatter", "output_sizes": [[2, 3]] * 2, "output_dtypes": ["Float"] * 2}
    leaf = {"profiling_name": "nccl:scatter", "output_sizes": [[0]], "output_dtypes": ["UNKNOWN_SCALAR"]}
    first, second = repair(dump_of(RAW | root, RAW | leaf), 0, GROUPS).entries
    assert (first.input_sizes, first.output_sizes) == (((2, 3), (2, 3)), ((2, 3),))
    assert (second.input_sizes, second.output_sizes) == ((), ((2, 3),))


def test_groups_that_do_not_fit_leave_nothing_to_send() -> None:
    assert encode_dump(FlightDump(0, (FlightGroup("0", "x" * 300, (0,)),), ()), 100) == ""
