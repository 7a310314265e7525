"""Codes and readings lead to what was reviewed, and docs/devices.md says the same."""

import re
from pathlib import Path

import pytest

from controlplane.policy.readings import MEMORY_HOT_C, POWER_LIMIT_SHARE, READINGS
from controlplane.policy.xid import known_xids, look_up
from tests.unit.policy import golden_acts as golden
from tests.unit.policy.builders import only, running, signal

DEVICES = (Path(__file__).resolve().parents[3] / "docs" / "devices.md").read_text(encoding="ascii")
BUCKET_OF = {int(code): bucket for bucket, codes in golden.XID_BUCKETS.items() for code in codes.split()}


def test_the_reviewed_table_names_each_code_of_the_catalogue_once() -> None:
    assert sum(len(codes.split()) for codes in golden.XID_BUCKETS.values()) == len(BUCKET_OF)
    assert sorted(BUCKET_OF) == list(known_xids())


@pytest.mark.parametrize("number", sorted(BUCKET_OF))
def test_each_code_leads_to_the_reviewed_act(number: int) -> None:
    bucket = BUCKET_OF[number]
    assert look_up(number).bucket.value == bucket
    snapshot = running(signals=(signal("xid", node_id="n3", device_index=0, value=float(number)),))
    assert only(snapshot, "device_fault").choice == golden.CHOICES[bucket]


def test_each_reading_has_the_reviewed_limit_and_act() -> None:
    found = {
        name: (limit.value, limit.window_s, limit.bucket.value, limit.lasts, bool(limit.ask))
        for name, limit in READINGS.items()
    }
    assert found == golden.READINGS
    assert (MEMORY_HOT_C, POWER_LIMIT_SHARE) == (95.0, 0.9)


@pytest.mark.parametrize("name", golden.READINGS)
def test_each_reading_leads_to_the_reviewed_choice(name: str) -> None:
    sign = signal("device_reading", node_id="n3", device_index=0, evidence={"reading": name})
    snapshot = running(signals=(sign,))
    assert only(snapshot, "device_fault").choice == golden.CHOICES[golden.READINGS[name][2]]


def test_the_devices_page_says_the_same_of_readings() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", DEVICES, re.MULTILINE)
    told = {row for row in rows if row[0] != "reading" and not row[0].startswith("---")}
    assert told == set(golden.READING_ROWS.values())
    assert golden.READING_ROWS.keys() == golden.READINGS.keys()


def test_the_devices_page_says_the_same_of_codes() -> None:
    """Codes that it names beside a bucket are in that bucket, and each bucket has its line."""
    rows = re.findall(r"^\| ([a-z, ]+) \| ([^|]+) \| [^|]+ \|$", DEVICES, re.MULTILINE)
    told = {name: re.findall(r"\b\d{2,3}\b", text) for names, text in rows for name in names.split(", ")}
    assert set(golden.XID_BUCKETS) <= told.keys()
    named = [(int(code), bucket) for bucket in golden.XID_BUCKETS for code in told[bucket]]
    assert named, "the table names codes"
    assert [pair for pair in named if BUCKET_OF[pair[0]] != pair[1]] == []
