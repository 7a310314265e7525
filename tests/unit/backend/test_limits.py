"""What one agent may use: rates, sizes, refusals gathered."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.live import limits
from controlplane.live.limits import Admission, Bucket, Pace, Place, Refusals, check_size, only_listed
from controlplane.protocol.errors import MalformedFrame
from controlplane.protocol.frames import AgentFrame
from controlplane.protocol.samples import DeviceSample


def frame(*indexes: int) -> AgentFrame:
    """A frame with a sample of each index."""
    return AgentFrame(seq=1, uptime_s=1.0, devices=tuple(DeviceSample(index=index) for index in indexes))


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(2.0, 5.0, at_s=0.0)
    assert [bucket.take(1.0, 0.0) for _ in range(6)] == [True] * 5 + [False]
    assert [bucket.take(1.0, 1.0) for _ in range(3)] == [True, True, False]
    assert not bucket.full(1.0)
    assert bucket.full(100.0)


def test_what_is_owed_is_waited_for_and_no_more() -> None:
    bucket = Bucket(10.0, 10.0, at_s=0.0)
    assert bucket.owe(10.0, 0.0) == 0.0
    assert bucket.owe(20.0, 0.0) == 2.0
    assert bucket.owe(0.0, 2.0) == 0.0


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 20.0)), max_size=50))
def test_no_pattern_takes_more_than_burst_and_rate(steps: list[tuple[float, float]]) -> None:
    bucket, now_s, taken = Bucket(3.0, 7.0, at_s=0.0), 0.0, 0.0
    for wait_s, number in steps:
        now_s += wait_s
        taken += number if bucket.take(number, now_s) else 0.0
    assert taken <= 7.0 + 3.0 * now_s + 1e-6


def test_a_session_pauses_for_bytes_and_events_over_its_rate_and_sheds_large_readings() -> None:
    pace = Pace()
    assert pace.pause_s(1_000, 10) == 0.0
    assert pace.pause_s(int(limits.BYTES_BURST), 0) > 0.0
    assert Pace().pause_s(0, int(limits.EVENTS_BURST) + 500) > 0.4
    assert pace.may_hint(1_000)
    assert not pace.may_hint(limits.MAX_HINT_BYTES + 1)
    allowed = sum(pace.may_hint(limits.MAX_HINT_BYTES) for _ in range(100))
    assert allowed <= limits.HINT_BYTES_BURST / limits.MAX_HINT_BYTES + 1


def test_a_node_opens_so_many_sessions_and_another_is_not_held_back_by_it() -> None:
    admission = Admission()
    opened = sum(admission.may_open("loop") for _ in range(200))
    assert opened == int(limits.SESSIONS_BURST)
    assert admission.may_open("good")


class Door:
    """An admission with sockets that stay."""

    def __init__(self) -> None:
        self.admission = Admission()
        self.stay = ExitStack()

    def comes(self, address: str, *, silent: bool = True, age_s: float = 0.0) -> Place | None:
        """One socket; None: there was no place for it."""
        place = self.stay.enter_context(self.admission.unknown_socket(address))
        if place is not None:
            place.since_s -= age_s
            if silent:
                self.stay.enter_context(place.waiting(Patience()))  # type: ignore[arg-type]
        return place


class Patience:
    """Of a socket without a task."""

    def reschedule(self, when: float | None) -> None:
        """Nobody waits."""


async def test_strangers_sockets_are_bounded_and_give_their_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_UNKNOWN_SOCKETS", 3)
    door = Door()
    assert [door.comes("a", silent=False) is not None for _ in range(5)] == [True] * 3 + [False] * 2
    door.stay.close()
    assert door.comes("a") is not None


async def test_the_oldest_silent_socket_makes_room_and_one_that_is_being_checked_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_UNKNOWN_SOCKETS", 3)
    door = Door()
    checked, old, older = (
        door.comes("a", silent=False, age_s=9.0), door.comes("a", age_s=2.0), door.comes("a", age_s=2.0),
    )  # fmt: skip
    assert checked and old and older
    assert door.comes("a") is not None
    assert (checked.pushed_out, old.pushed_out, older.pushed_out) == (False, True, False)
    assert door.comes("a") is not None
    assert door.comes("a") is None, "both that are silent have just come"
    assert not checked.pushed_out


async def test_a_few_addresses_push_out_their_own_however_fast_they_open_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_UNKNOWN_SOCKETS", 10)
    door = Door()
    agent = door.comes("agent", age_s=5.0)
    assert agent
    for number in range(200):
        door.comes(f"flood-{number % 3}")
    assert not agent.pushed_out
    assert door.comes("another") is not None
    assert len(door.admission._places) == 10


def test_refusals_are_due_at_once_and_then_once_in_a_while_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = Refusals()
    refusals.note("n1", "revoked")
    assert refusals.due() == [("n1", "revoked", 1)]
    for _ in range(5):
        refusals.note("n1", "revoked")
    assert refusals.due() == []
    refusals.note("n2", "revoked")
    assert refusals.due() == [("n2", "revoked", 1)]
    monkeypatch.setattr(limits, "AUDIT_EVERY_S", 0.0)
    later = Refusals()
    for number in (1, 2):
        for _ in range(number):
            later.note("n1", "revoked")
        assert later.due() == [("n1", "revoked", number)]


def test_a_frame_of_listed_devices_goes_on_as_it_is() -> None:
    whole = frame(0, 1)
    assert only_listed(whole, {0, 1, 2}) is whole


def test_devices_that_were_never_listed_and_repeated_ones_are_cut_out() -> None:
    assert [s.index for s in only_listed(frame(0, 7, 1, 1), {0, 1}).devices] == [0, 1]


def test_more_devices_than_a_machine_holds_are_no_frame() -> None:
    check_size(frame(*range(limits.MAX_DEVICES_A_FRAME)))
    with pytest.raises(MalformedFrame, match="64 are allowed"):
        check_size(frame(*range(limits.MAX_DEVICES_A_FRAME + 1)))
