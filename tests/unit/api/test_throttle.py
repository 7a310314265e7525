"""Buckets empty, say how long to wait, fill again, and do not grow for ever."""

from controlplane.api import throttle
from controlplane.api.throttle import Buckets


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_burst_is_served_then_refused_until_time_passes() -> None:
    clock = Clock()
    buckets = Buckets(0.5, 3, clock)
    assert [buckets.take("ada") for _ in range(4)] == [None, None, None, 2]
    clock.now_s = 2.0
    assert [buckets.take("ada"), buckets.take("ada")] == [None, 2]


def test_one_caller_does_not_empty_anothers_bucket() -> None:
    buckets = Buckets(1.0, 1, Clock())
    assert buckets.take("ada") is None
    assert buckets.take("ada") is not None
    assert buckets.take("eve") is None


def test_the_table_is_bounded() -> None:
    buckets = Buckets(1.0, 1, Clock())
    for number in range(throttle.MAX_BUCKETS + 10):
        buckets.take(str(number))
    assert len(buckets._levels) == throttle.MAX_BUCKETS
