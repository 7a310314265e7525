"""What the registers of an XID 74 say: NVIDIA's workflow for NVLink errors, bit by bit.

The driver's text ends in "link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)": the link, and seven
registers of which the first, third, fourth and fifth count, on Hopper. Called by `xid.judge`; where
there is no such text, or the device is of another family, nothing is read into it. Pure.
"""

import re
from enum import StrEnum

import msgspec

_TEXT = re.compile(r"\blink\s+(\d+)\s*\(((?:0x[0-9a-f]{1,8},\s*){6}0x[0-9a-f]{1,8})\)", re.IGNORECASE)
HOPPER = ("H100", "H200", "H800", "H20", "GH100", "GH200")


class Meaning(StrEnum):
    """What a bit stands for, by NVIDIA's words; of several bits the later one here decides."""

    NOTHING = "nothing"
    CORRECTED = "more corrected errors than a threshold; work continues"
    SECONDARY = "a consequence of another error"
    FABRIC = "a consequence of another error, and the fabric needs a reset"
    SIGNAL = "a marginal signal on the link"
    PARITY = "an ECC or parity error of the link's hardware"
    REPEATED = "an error that matters when it comes again"
    HARDWARE = "a possible fault of the link's hardware"
    UNEXPECTED = "a bit that NVIDIA does not expect to be seen"


_BITS: tuple[tuple[int, tuple[int, ...], Meaning], ...] = (
    (0, (0, 23, 30), Meaning.NOTHING),
    (0, (1, 20), Meaning.SECONDARY),
    (0, (4, 5), Meaning.PARITY),
    (0, (8, 9, 12, 16, 17, 24, 28), Meaning.HARDWARE),
    (0, (21, 22), Meaning.SIGNAL),
    (0, (27, 29), Meaning.REPEATED),
    (2, (0, 1, 2, 6), Meaning.PARITY),
    (2, (13,), Meaning.UNEXPECTED),
    (2, (16, 17, 18, 19), Meaning.REPEATED),
    (3, (16, 17), Meaning.SECONDARY),
    (3, (18,), Meaning.FABRIC),
    (4, (18, 19, 21, 22, 24, 25, 27, 28), Meaning.PARITY),
    (4, (20, 23, 26, 29), Meaning.CORRECTED),
)
_VALID = (0, 2, 3, 4)
_MEANINGS = {(register, bit): meaning for register, bits, meaning in _BITS for bit in bits}
QUIET = frozenset({Meaning.NOTHING, Meaning.CORRECTED})
A_PERSONS = {
    Meaning.HARDWARE: "check the link's connections and run NVIDIA's field diagnostics; then ask NVIDIA's support",
    Meaning.SIGNAL: "check the link's connections and run NVIDIA's field diagnostics; then ask NVIDIA's support",
    Meaning.UNEXPECTED: "ask NVIDIA's support, with the driver's line",
}
"""What no reset mends. A consequence without any cause beside it is one of them."""


class LinkError(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of one XID 74. `worst` decides; `ask`: what a person must do, "" for nothing; `quiet`: work
    goes on."""

    link: int
    worst: Meaning
    ask: str = ""

    @property
    def quiet(self) -> bool:
        """Nothing is wrong with the link now."""
        return self.worst in QUIET


def link_in(detail: str) -> int | None:
    """The link that the driver's text names, whatever the model is and the registers say."""
    line = _TEXT.search(detail)
    return None if line is None else int(line[1])


def read(detail: str, model: str) -> LinkError | None:
    """The registers in the driver's text. None: there are none, or they mean nothing on this model."""
    told = _TEXT.search(detail)
    if told is None or not any(name in model for name in HOPPER):
        return None
    registers = [int(text, 16) for text in told[2].split(",")]
    found = {
        _MEANINGS.get((register, bit), Meaning.UNEXPECTED)
        for register in _VALID
        for bit in range(32)
        if registers[register] >> bit & 1
    }
    worst = max(found, key=list(Meaning).index, default=Meaning.UNEXPECTED)
    ask = A_PERSONS.get(worst, "")
    if worst in (Meaning.SECONDARY, Meaning.FABRIC):
        ask = A_PERSONS[Meaning.UNEXPECTED]
    return LinkError(link=int(told[1]), worst=worst, ask=ask)
