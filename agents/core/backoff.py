"""When to try the server again: full jitter, so that a fleet never knocks at once."""

BASE_S = 0.25
CAP_S = 15.0
PARKED_S = 300.0  # refused for good: a person must act, so ask rarely


def delay_s(failures: int, jitter: float, *, at_least_s: float = 0.0, within_s: float = CAP_S) -> float:
    """Seconds until try number `failures` + 1. `jitter` in 0..1; `at_least_s` and `within_s`:
    what the server asks for."""
    assert 0.0 <= jitter <= 1.0, "jitter is a share"
    ceiling_s = min(CAP_S, within_s, BASE_S * 2.0 ** min(failures, 16))
    return at_least_s + max(jitter * ceiling_s, 0.02)
