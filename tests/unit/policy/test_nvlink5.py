"""XID 144 to 150: unit, sub-code and status in the driver's line decide, as NVIDIA's sheet has them."""

import pytest

from controlplane.policy import nvlink5
from controlplane.policy.xid import judge


def line(unit: str, *, subcode: int = 0, status: int = 0, word: str = "Fatal", link: int = 3) -> str:
    """As the driver writes it; the low bits of the first word name the unit again and do not count."""
    return f"{unit} {word} XC0 i0 Link {link:02} (0x{subcode << 20 | 0x1C6:08x} 0x{status:08x} 0x00000000 0x00000000)"


@pytest.mark.parametrize(
    ("xid", "unit", "subcode", "status", "bucket", "asks"),
    [
        (144, "SAW_MVB", 0, 0x1, "support", "support"),
        (144, "SAW_MVB", 0, 0x2, "reset", ""),
        (144, "SAW_MVB", 0, 0x24, "ignore", ""),
        (145, "RLW_REMAP", 0, 0x10, "ignore", ""),
        (145, "RLW_REMAP", 0, 0x40, "reset", ""),
        (145, "RLW_REMAP", 0, 0x140, "reset", ""),
        (145, "RLW_REMAP", 0, 0x80000000, "support", "support"),
        (145, "RLW_RXPIPE", 0, 0x8, "support", "support"),
        (145, "RLW_SRC_TRACK", 0, 0x2, "ignore", ""),
        (145, "RLW_TAGSTATE", 0, 0x20000, "reset", ""),
        (146, "TLW_RX_PIPE1", 0, 0x4, "reset", ""),
        (146, "TLW_TX", 0, 0x1, "ignore", ""),
        (147, "TREX", 0, 0x1, "support", "support"),
        (148, "NVLPW", 0, 0x80000000, "support", "support"),
        (149, "NETIR_INT", 0, 0, "reset", ""),
        (149, "NETIR_BER_EVENT", 0, 2, "degraded", "cables"),
        (149, "NETIR_MFDE_EVENT", 0, 3, "ignore", ""),
        (149, "NETIR_MFDE_EVENT", 0, 4, "reset", "support"),
        (149, "NETIR_LINK_EVT", 0, 0, "reset", ""),
        (149, "NETIR_LINK_DOWN", 4, 0, "reset", "signal"),
        (149, "NETIR_LINK_EVT", 37, 0, "reset", "other end of the link"),
        (149, "NETIR_LINK_EVT", 38, 0, "degraded", "software"),
        (149, "NETIR_LINK_EVT", 40, 0, "degraded", "host"),
        (149, "NETIR_LINK_EVT", 42, 0, "reset", "cables"),
        (150, "MSE_WATCHDOG", 0, 0, "reset", "support"),
    ],
)
def test_each_sub_code_gets_its_act(xid: int, unit: str, subcode: int, status: int, bucket: str, asks: str) -> None:
    verdict = judge(xid, detail=line(unit, subcode=subcode, status=status))
    assert verdict.bucket == bucket
    assert asks in verdict.ask and bool(verdict.ask) is bool(asks)
    assert f"sub-code {subcode} of {unit}, link 3, status 0x{status:08x}" in verdict.provenance


@pytest.mark.parametrize(
    ("xid", "detail"),
    [
        (149, ""),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 01"),
        (149, line("NETIR_LINK_EVT", subcode=63)),
        (149, line("SAW_MVB", status=2)),
        (144, line("SAW_MVB", status=0)),
        (144, line("SAW_MVB", status=0x2 | 1 << 20)),
        (145, line("RLW_REMAP", subcode=5, status=0x40)),
        (147, line("TREX", status=4)),
    ],
)
def test_a_line_that_nvidia_does_not_list_keeps_what_the_code_alone_says(xid: int, detail: str) -> None:
    assert nvlink5.read(xid, detail) is None
    assert judge(xid, detail=detail).bucket == judge(xid).bucket == "degraded"


@pytest.mark.parametrize(
    ("text", "subcode", "link"),
    [
        ("NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000)", 33, 1),
        ("NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000)", 0, -1),
        ("NETIR_LINK_EVT Fatal XC 1 i 2 Link 17 [0x0250000a]", 37, 17),
        ("pid='<unknown>', name=<unknown>, NETIR_LINK_EVT Nonfatal XC1 i2 Link 17 (0x0260000a)", 38, 17),
    ],
)
def test_lines_of_older_and_newer_drivers_are_read(text: str, subcode: int, link: int) -> None:
    found = nvlink5.read(149, text)
    assert found is not None
    assert (found.subcode, found.link) == (subcode, link)


def test_repeats_and_the_sites_own_word_count_here_too() -> None:
    twice = line("NETIR_LINK_EVT", subcode=33)
    assert judge(149, detail=twice, repeats=3).bucket == "fatal"
    assert judge(149, detail=twice, overrides={149: "ignore"}).bucket == "ignore"
    assert nvlink5.read(79, twice) is None
