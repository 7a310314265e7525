"""Figures of a load test: quantiles, the gate on the generator itself, and what a server's counters say."""

import random

import pytest

from controlplane.bench.figures import (
    GATE_LATE_S,
    Spread,
    by_label,
    grown,
    of_histogram,
    read_figures,
    summary,
    verdict,
)
from controlplane.bench.tally import Counted, plus

EXPOSED = """# HELP frames_total Frames.
# TYPE frames_total counter
frames_total{result="ok"} 120.0
frames_total{result="bad, \\"odd\\""} 3.0
lag_seconds_bucket{le="0.01"} 90.0
lag_seconds_bucket{le="0.5"} 199.0
lag_seconds_bucket{le="+Inf"} 200.0
lag_seconds_count 200.0
no figure
"""


def spread(values: list[float]) -> Spread:
    made = Spread()
    for value in values:
        made.add(value)
    return made


def test_a_spread_is_right_to_one_percent_and_adds_up() -> None:
    drawn = random.Random(3)
    values = [drawn.lognormvariate(-5.0, 1.5) for _ in range(4000)]
    one, two = spread(values[:1000]), spread(values[1000:])
    both = one.plus(two)
    assert both.total == 4000 and both.largest_s == max(values)
    for q in (0.5, 0.99):
        exact = sorted(values)[int(q * 3999)]
        assert both.quantile_s(q) == pytest.approx(exact, rel=0.012)
    assert one.total == 1000, "a sum changes none of its parts"


@pytest.mark.parametrize("number", [99, 100])
def test_there_is_no_p99_of_fewer_than_a_hundred_values(number: int) -> None:
    values = [float(value) for value in range(1, number + 1)]
    for said in (summary(values), spread(values).summary()):
        assert (said["p99_s"] is not None) is (number >= 100)
        assert said["n"] == number and said["max_s"] == number
    assert Spread().summary() == summary([]) == {"n": 0, "median_s": None, "p99_s": None, "max_s": None}


def test_a_late_or_full_generator_refuses_its_own_figures() -> None:
    assert verdict(spread([0.001] * 1000), [0.4, 0.5]) == ""
    assert verdict(spread([0.001] * 900 + [GATE_LATE_S * 2] * 100), [0.4]).startswith("generator late: p99 20")
    assert verdict(spread([0.001] * 1000), [0.2, 0.95]).startswith("generator full")
    assert verdict(spread([]), [0.2]) == "the generator sent no heartbeat in the window"
    assert verdict(spread([0.001] * 9990 + [GATE_LATE_S * 2] * 10), []) == "", "one in a thousand may be late"


def test_what_a_server_exposes_is_read_with_its_labels() -> None:
    read = read_figures(EXPOSED)
    assert read["frames_total", (("result", "ok"),)] == 120.0
    assert read["lag_seconds_count", ()] == 200.0
    assert len(read) == 6, "a line that is no figure is left out"


def test_growth_is_counted_from_the_reading_before_and_of_a_process_that_began_meanwhile_from_zero() -> None:
    before, after = read_figures("a 10\nb 5\n"), read_figures("a 14\nb 2\nc 7\n")
    assert {key[0]: value for key, value in grown(before, after).items()} == {"a": 4.0, "b": 2.0, "c": 7.0}


def test_a_quantile_of_a_servers_histogram_is_the_bound_of_its_bucket() -> None:
    read = read_figures(EXPOSED)
    assert of_histogram(read, "lag_seconds") == {"n": 200, "median_s": 0.5, "p99_s": 0.5}
    assert of_histogram(read, "nothing") == {"n": 0, "median_s": None, "p99_s": None}
    assert by_label(read, "frames_total")["ok"] == 120


def test_what_several_processes_count_adds_up() -> None:
    one = Counted(frames=3, refused={"overloaded": 2}, back_s=[1.0], lateness=spread([0.1]))
    two = Counted(frames=4, refused={"overloaded": 1, "replaced": 1}, back_s=[2.0], lateness=spread([0.2, 0.3]))
    whole = plus([one, two])
    assert (whole.frames, whole.back_s, whole.lateness.total) == (7, [1.0, 2.0], 3)
    assert whole.refused == {"overloaded": 3, "replaced": 1}
    assert one.back_s == [1.0] and one.frames == 3
