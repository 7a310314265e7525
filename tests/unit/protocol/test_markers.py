"""Known lines are recognised, ordinary ones are not, and no pattern costs more than the line is long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.protocol.markers import KNOWN, contains, fault_of, marker_of, may_hold_any, meaning
from controlplane.protocol.spec_lint import lint
from tests.unit.protocol.test_spec_lint import broken

LINES = [
    ("2025-01-01 [FaultTolerance] Initialized", "fault_tolerance"),
    ("[RankMonitorServer:3] no heartbeat for 30 s", "rank_monitor"),
    ("  Scheduling async checkpoint save at iteration 20", "async_save"),
    (
        "[rank3]:[E ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(...)",
        "collective_timeout",
    ),
    ("torch.AcceleratorError: CUDA error: device-side assert triggered", "cuda_error"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "out_of_memory"),
    ("terminate called after throwing an instance of 'std::bad_alloc'", "out_of_memory"),
    ("RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1275, unhandled system error", "nccl_error"),
    ("GPU relative performance: {0: 0.99, 1: 0.51}", "straggler_report"),
    ("step 12, loss 3.41, 0.52 s", None),
    ("", None),
]


@pytest.mark.parametrize(("line", "marker"), LINES, ids=[str(marker) for _, marker in LINES])
def test_a_known_line_has_its_marker_and_an_ordinary_one_none(line: str, marker: str | None) -> None:
    assert marker_of(line, {}) == marker
    assert may_hold_any(f"before\n{line}\nafter", {}) == (marker is not None)


def test_a_jobs_own_marker_goes_before_the_known_ones_and_may_leave_parts_open() -> None:
    own = {"disk": "I/O error*device nvme", "mine": "CUDA error"}
    assert marker_of("print: I/O error on device nvme0", own) == "disk"
    assert marker_of("device nvme0: I/O error", own) is None
    assert marker_of("CUDA error: 700", own) == "mine"
    assert (meaning("disk"), meaning("cuda_error")) == ("disk", "CUDA error")


PART = st.text(alphabet="ab", max_size=3)


@given(st.lists(PART, min_size=1, max_size=6), st.lists(PART, min_size=7, max_size=7))
def test_a_line_made_of_a_patterns_parts_has_it(parts: list[str], between: list[str]) -> None:
    line = between[0] + "".join(part + gap for part, gap in zip(parts, between[1:], strict=False))
    assert contains(line, "*".join(parts))


@given(st.text(alphabet="ab\n", max_size=60), st.text(alphabet="ab*", min_size=1, max_size=8))
def test_no_line_is_missed_by_the_look_at_the_whole_text(text: str, pattern: str) -> None:
    own = {"mine": pattern}
    assert may_hold_any(text, own) or not any(marker_of(line, own) for line in text.split("\n"))


def test_a_pattern_that_every_line_has_or_a_known_name_is_refused() -> None:
    assert fault_of("mine", "disk*full") is None
    assert fault_of("mine", "*") and fault_of("mine", "a*b") and fault_of(next(iter(KNOWN)), "disk full")
    assert fault_of("mine", "x" * 201)
    told = lint(broken(("/spec/resiliency", {"log_markers": {"mine": "*", "full": "disk full"}}))).faults
    assert [fault.pointer for fault in told] == ["/spec/resiliency/log_markers/mine"]
    many = {f"m{number}": "disk full" for number in range(17)}
    assert lint(broken(("/spec/resiliency", {"log_markers": many}))).spec is None
