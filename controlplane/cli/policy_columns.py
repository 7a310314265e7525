"""Columns of policies, as `columns` has those of everything else."""

from controlplane.cli.output import ABSENT, Column, age, number, text

VERSIONS = (
    Column(title="NUMBER", show=text("number")),
    Column(title="AGE", show=age("at")),
    Column(title="WHO", show=text("who")),
    Column(title="REASON", show=text("reason")),
    Column(title="RESTORES", show=text("restores")),
    Column(title="VERSION", show=text("version"), wide=True),
    Column(title="PARENT", show=text("parent"), wide=True),
)
FIELDS = (
    Column(title="FIELD", show=text("name")),
    Column(title="VALUE", show=text("value")),
    Column(title="UNIT", show=text("unit")),
    Column(title="SET BY", show=text("set_by")),
    Column(title="DEFAULT", show=text("default")),
    Column(title="SOURCE", show=text("source")),
    Column(title="BELOW THE FLEET", show=lambda row: f"go {row['safer']}" if row["safer"] else ABSENT, wide=True),
    Column(title="WHAT", show=text("what"), wide=True),
    Column(title="BECAUSE", show=text("because"), wide=True),
)
XIDS = (
    Column(title="XID", show=text("xid")),
    Column(title="WHAT", show=text("what")),
    Column(title="NVIDIA", show=text("nvidia")),
    Column(title="GPUD", show=text("gpud")),
    Column(title="AWS", show=text("aws")),
    Column(title="STANDARD", show=text("standard")),
    Column(title="SITE", show=text("site")),
    Column(title="NOW", show=text("action")),
    Column(title="DISAGREE", show=lambda row: "; ".join(row["disagreements"]) or ABSENT),
    Column(title="BECAUSE", show=text("because"), wide=True),
)

AGREEMENT = (
    Column(title="RULE", show=text("rule")),
    Column(title="ALIKE", show=number("alike", 0)),
    Column(title="REWORDED", show=number("reworded", 0)),
    Column(title="OTHER ACT", show=number("other", 0)),
    Column(title="ACTS", show=number("acts", 0)),
    Column(title="HOLDS", show=number("holds", 0)),
)
