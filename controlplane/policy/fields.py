"""Every field of `PolicyConfig`: what it does, where its default comes from, and what a document may say.

One row a field in `data/policy_fields.csv`, read by the validation (`policy.document`), the API, the page and
docs/policy.md. Defaults stand in `PolicyConfig` alone. A project or job may only narrow: move a field towards fewer or
later acts, `safer`.
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources


class Source(StrEnum):
    """Where a default comes from."""

    OWN = "own value"
    MEASURED = "measured"
    SOURCE = "source"


class Safer(StrEnum):
    """The direction in which a project or job may move a field; `NEITHER`: it is the fleet's alone."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """`least` and `most` it may be, in `unit`; `because`: behind the default, in words.
    `within`: another field that it may not exceed, or it would never come to bear."""

    name: str
    group: str
    what: str
    unit: str
    least: float
    most: float
    source: Source
    because: str
    safer: Safer
    within: str

    @property
    def whole(self) -> bool:
        """It counts."""
        return self.unit == "count"

    @property
    def narrows(self) -> bool:
        """A project or job may set it, in the direction `safer`."""
        return self.safer is not Safer.NEITHER


UNITS = (("_gpu_s", "GPU-s"), ("_s", "s"))
"""By what a name ends with, the first that fits."""


def _fields() -> Iterator[Field]:
    text = resources.files("controlplane.policy.data").joinpath("policy_fields.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(io.StringIO(text)):
        name, least, most = row["name"], float(row["least"]), float(row["most"])
        unit = (
            "GPU-s" if name.endswith("_gpu_s") else "s" if name.endswith("_s") else "0..1" if most == 1.0 else "count"
        )
        yield Field(
            name=name,
            group=row["group"],
            what=row["what"],
            unit=unit,
            least=least,
            most=most,
            source=Source(row["source"]),
            because=row["because"],
            safer=Safer(row["safer"]),
            within=row["within"],
        )


FIELDS: tuple[Field, ...] = tuple(_fields())
BY_NAME = {field.name: field for field in FIELDS}
XID_OVERRIDES, RULE_MODES = "xid_overrides", "rule_modes"
TABLES = {
    XID_OVERRIDES: "the site's action for an XID: fatal, reset, support, degraded, application or ignore; the fleet's"
    " alone, as a device is no job's",
    RULE_MODES: "how far a rule may go by itself: observe, recommend or enforce; a project or job may only lower it",
}
"""Fields that hold a table; both are empty by default."""
