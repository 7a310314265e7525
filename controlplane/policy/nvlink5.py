"""What the driver's line of an XID 144 to 150 says: NVLink 5, sub-code by sub-code.

The line names a unit, its own word for how bad it is, the link, and words of registers:
"NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x00000000 ...)". Bits 20 to 25 of the first word are
the sub-code, the second is the unit's status. What each combination asks for is NVIDIA's: the
sheet for XID 144 to 150 of its XID catalogue
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, Xid-Catalog.xlsx), read as gpud
ships it (https://github.com/leptonai/gpud, components/accelerator/nvidia/xid). A combination that
is not there is not guessed at. Called by `xid.judge`. Pure.
"""

import re
from collections.abc import Mapping
from enum import StrEnum

import msgspec

XIDS = range(144, 151)
_TEXT = re.compile(
    r"\b([A-Z][A-Z0-9_]{2,30})\s+(?:Non-?fatal|Fatal)\b.{0,40}?\bLink\s+(-?\d{1,2})\s*"
    r"[(\[](0x[0-9a-f]{1,8})(?:[ ,]+(0x[0-9a-f]{1,8}))?",
    re.IGNORECASE,
)
_SUBCODE_SHIFT, _SUBCODE_MASK = 20, 0x3F
_TOP = 31


class Act(StrEnum):
    """What NVIDIA asks for; of several bits of a status the later one here decides."""

    NOTHING = "nothing"
    DRIVER = "what XID 154 of the driver says, which comes with it"
    CABLES = "a check of the link's signal and cables"
    SUPPORT = "NVIDIA's support"
    RESET = "a reset of the GPU"


class LinkFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of one line. `link` -1: of none. `ask`: what a person must do, "" for nothing."""

    unit: str
    link: int
    subcode: int
    status: int
    act: Act
    ask: str = ""


_SUPPORT = "ask NVIDIA's support, with the driver's line"
_ASK = {Act.CABLES: "check the link's signal and cables", Act.SUPPORT: _SUPPORT}

_TLW = {0: Act.NOTHING, 1: Act.SUPPORT, 2: Act.RESET, _TOP: Act.SUPPORT}
_BITS: Mapping[tuple[int, str], Mapping[int, Act]] = {
    (144, "SAW_MVB"): {
        0: Act.SUPPORT, 1: Act.RESET, 2: Act.NOTHING, 3: Act.SUPPORT, 4: Act.RESET, 5: Act.NOTHING,
    },
    (145, "RLW_CTRL"): {_TOP: Act.SUPPORT},
    (145, "RLW_REMAP"): {
        **dict.fromkeys(range(6), Act.DRIVER), 6: Act.RESET, 7: Act.RESET,
        8: Act.NOTHING, 9: Act.NOTHING, _TOP: Act.SUPPORT,
    },
    (145, "RLW_RSPCOL"): {0: Act.NOTHING, 1: Act.RESET, _TOP: Act.SUPPORT},
    (145, "RLW_RXPIPE"): dict.fromkeys((0, 1, 2, 3, _TOP), Act.SUPPORT),
    (145, "RLW_SRC_TRACK"): {
        0: Act.RESET, 1: Act.NOTHING, 2: Act.DRIVER, 3: Act.DRIVER, 4: Act.RESET, 5: Act.RESET, _TOP: Act.SUPPORT,
    },
    (145, "RLW_TAGSTATE"): {
        0: Act.NOTHING, 1: Act.RESET, 16: Act.NOTHING, 17: Act.RESET, 20: Act.RESET, _TOP: Act.SUPPORT,
    },
    **{
        (146, unit): _TLW
        for unit in (
            "TLW_CTRL", "TLW_RX", "TLW_RX_PIPE0", "TLW_RX_PIPE1", "TLW_TX", "TLW_TX_PIPE0", "TLW_TX_PIPE1"
        )
    },
    (147, "TREX"): {0: Act.SUPPORT, _TOP: Act.SUPPORT},
    (148, "NVLPW_CTRL"): {_TOP: Act.SUPPORT},
    (148, "NVLPW"): {_TOP: Act.SUPPORT},
}  # fmt: skip
"""Acts by bit of the status, where the sub-code is 0."""
_VALUES: Mapping[tuple[int, str], Mapping[int, Act]] = {
    (149, "NETIR"): {0: Act.RESET},
    (149, "NETIR_INT"): {0: Act.RESET},
    (149, "NETIR_BER_EVENT"): dict.fromkeys(range(4), Act.CABLES),
    (149, "NETIR_MFDE_EVENT"): {1: Act.RESET, 3: Act.NOTHING, 4: Act.RESET, 5: Act.RESET, 7: Act.RESET},
    (150, "MSE_WATCHDOG"): {0: Act.RESET},
}
"""Acts by the whole status, where the sub-code is 0."""
_ASKS_AFTER_RESET = {"NETIR_MFDE_EVENT", "MSE_WATCHDOG"}
_LINK_UNITS = ("NETIR_LINK_EVT", "NETIR_LINK_DOWN")
_SIGNAL = "check the link's signal"
_USER = "look at what was done to the link: software, or a person"
_PEER = "look at the device at the other end of the link, which is the source"
_LINK: Mapping[int, tuple[Act, str]] = {
    0: (Act.RESET, ""),
    1: (Act.RESET, ""),
    **dict.fromkeys((2, 4, 10), (Act.RESET, _SIGNAL)),
    **dict.fromkeys((15, 17, 22), (Act.RESET, _USER)),
    **dict.fromkeys((16, 18), (Act.RESET, f"{_USER}; {_SIGNAL}")),
    **dict.fromkeys((21, *range(32, 38)), (Act.RESET, _PEER)),
    38: (Act.NOTHING, _USER),
    40: (Act.NOTHING, "look at the host"),
    **dict.fromkeys((42, 43), (Act.RESET, _ASK[Act.CABLES])),
}
"""Of a link that went down, by sub-code: the act, and what a person looks into."""


def link_in(detail: str) -> int | None:
    """The link that the driver's text names; None: none, or a fault of no link."""
    line = _TEXT.search(detail)
    return None if line is None or int(line[2]) < 0 else int(line[2])


def read(xid: int, detail: str) -> LinkFault | None:
    """What the driver's text says. None: there is no such text, or NVIDIA's sheet has no such line."""
    told = _TEXT.search(detail) if xid in XIDS else None
    if told is None:
        return None
    unit, link, status = told[1].upper(), int(told[2]), int(told[4] or "0", 16)
    subcode = int(told[3], 16) >> _SUBCODE_SHIFT & _SUBCODE_MASK
    found = _judge(xid, unit, subcode, status)
    if found is None:
        return None
    act, ask = found
    return LinkFault(unit=unit, link=link, subcode=subcode, status=status, act=act, ask=ask)


def _judge(xid: int, unit: str, subcode: int, status: int) -> tuple[Act, str] | None:
    if xid == 149 and unit in _LINK_UNITS:
        return _LINK.get(subcode) if status == 0 else None
    if subcode != 0:
        return None
    if (values := _VALUES.get((xid, unit))) is not None:
        act = values.get(status)
        if act is None:
            return None
        return act, _SUPPORT if act is Act.RESET and unit in _ASKS_AFTER_RESET else _ASK.get(act, "")
    bits = _BITS.get((xid, unit), {})
    raised = [bit for bit in range(32) if status >> bit & 1]
    if not raised or any(bit not in bits for bit in raised):
        return None
    worst = max((bits[bit] for bit in raised), key=list(Act).index)
    return worst, _ASK.get(worst, "")
