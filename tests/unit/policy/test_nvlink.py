"""XID 74: the registers in the driver's line decide whether a reset is enough."""

import pytest

from controlplane.policy.xid import judge, link_of

from .builders import only
from .test_device_faults import found

HOPPER = "NVIDIA H100 80GB HBM3"


def line(*registers: int, link: int = 14) -> str:
    """As the driver writes it; seven registers, those that are not given are 0."""
    words = ", ".join(f"0x{value:x}" for value in (*registers, *(0,) * (7 - len(registers))))
    return f"pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link {link}({words})"


@pytest.mark.parametrize(
    ("registers", "bucket", "asks"),
    [
        ((1 << 4,), "reset", ""),
        ((0, 0, 1 << 6), "reset", ""),
        ((0, 0, 0, 0, 1 << 18), "reset", ""),
        ((0, 0, 1 << 16), "reset", ""),
        ((1 << 16,), "fatal", "connections"),
        ((1 << 21,), "fatal", "connections"),
        ((1 << 21 | 1 << 4,), "reset", ""),
        ((0, 0, 1 << 13), "fatal", "support"),
        ((1 << 3,), "fatal", "support"),
        ((1 << 20,), "reset", "support"),
        ((1 << 20 | 1 << 4,), "reset", ""),
        ((0, 0, 0, 1 << 18), "reset", "support"),
        ((0, 0, 0, 0, 1 << 20), "ignore", ""),
        ((1 << 23 | 1 << 30, 0, 0, 0, 1 << 29), "ignore", ""),
        ((1 << 23 | 1 << 28,), "fatal", "connections"),
    ],
)
def test_the_worst_bit_decides(registers: tuple[int, ...], bucket: str, asks: str):
    verdict = judge(74, detail=line(*registers), model=HOPPER)
    assert verdict.bucket == bucket
    assert asks in verdict.ask and bool(verdict.ask) is bool(asks)
    assert "link 14" in verdict.provenance


@pytest.mark.parametrize(
    ("detail", "model"),
    [
        ("", HOPPER),
        ("NVLink: fatal error detected on link 2", HOPPER),
        ("link 2(0x0, 0x0)", HOPPER),
        (line(0, 0, 0, 0, 1 << 20), "NVIDIA A100-SXM4-80GB"),
        (line(0, 0, 0, 0, 1 << 20), ""),
    ],
)
def test_where_nothing_can_be_read_the_device_is_reset(detail: str, model: str):
    assert judge(74, detail=detail, model=model).bucket == "reset"


def test_registers_that_are_not_valid_say_nothing_and_seven_are_read():
    assert judge(74, detail=line(1 << 4, 0xFFFFFFFF, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF), model=HOPPER).bucket == "reset"


def test_a_parity_error_that_comes_a_third_time_is_a_persons():
    verdict = judge(74, detail=line(1 << 4), model=HOPPER, repeats=3)
    assert (verdict.bucket, bool(verdict.ask)) == ("fatal", True)


def test_only_another_xid_has_no_registers():
    assert judge(31, detail=line(1 << 13), model=HOPPER).bucket == "application"


def test_the_decision_acts_on_them():
    def codes(*registers: int) -> str:
        return only(found(74, detail=line(*registers), model=HOPPER), "device_fault").reason_code

    assert codes(1 << 4) == "device_reset"
    assert codes(1 << 16) != "device_reset"


def test_three_in_a_day_are_of_the_link_that_the_driver_names():
    verdict = judge(74, detail=line(1 << 4, link=5), model=HOPPER, repeats=3)
    assert (str(verdict.bucket), verdict.provenance) == ("fatal", "3 times in a day on link 5 of this device")
    assert link_of(145, "RLW_CTRL Nonfatal XC0 i0 Link -1 (0x00000001 0x80000000)") is None
    assert link_of(79, line(1)) is None
