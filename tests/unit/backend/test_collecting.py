"""The cycle collector stands still within a pass, and runs on after it."""

import gc
import threading

import pytest

from controlplane.runtime import collecting


def test_nothing_is_collected_within_and_it_goes_on_after_whatever_happens() -> None:
    assert gc.isenabled()
    with pytest.raises(ValueError), collecting.paused():
        assert not gc.isenabled()
        raise ValueError
    assert gc.isenabled()


def test_it_goes_on_when_the_last_of_several_has_left() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collecting.paused():
            inside.set()
            leave.wait(10.0)

    thread = threading.Thread(target=other)
    with collecting.paused():
        thread.start()
        inside.wait(10.0)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_where_it_was_off_it_stays_off() -> None:
    gc.disable()
    try:
        with collecting.paused(), collecting.paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
