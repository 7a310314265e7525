"""Recorded decisions made again, and snapshots of earlier shapes."""

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.document import config_of
from controlplane.policy.fleet import FleetSnapshot
from controlplane.policy.replay import Kind, compared, content_of, differing, found
from controlplane.policy.snapshot import JobSnapshot
from controlplane.policy.upcast import SHAPE, STEPS, upcast
from controlplane.recovery.snapshots import packed, raw_of, unpacked
from tests.unit.policy.builders import CONFIG, change, running, signal

FOLDER = Path(__file__).parent / "snapshots"
FIELDS = FOLDER / f"{SHAPE}.fields.json"


def lost() -> JobSnapshot:
    return change(running(), signals=(signal("rank_exit", replica=1, incarnation=1, rank=0, value=-9.0),))


def fixture(shape: int) -> bytes:
    return base64.b64decode((FOLDER / f"{shape}.b64").read_text())


def fields_of_today() -> dict[str, list[str]]:
    """Of every type in a snapshot."""
    _, types = msgspec.json.schema_components([JobSnapshot, FleetSnapshot])
    return {name: sorted(kind["properties"]) for name, kind in types.items() if "properties" in kind}


@pytest.mark.parametrize("shape", range(SHAPE + 1))
def test_a_snapshot_of_each_shape_is_read_and_decided(shape: int) -> None:
    snapshot = unpacked(fixture(shape), JobSnapshot)
    assert raw_of(fixture(shape))[1] == shape
    assert [decision.choice for decision in decide(snapshot, CONFIG).decisions] == ["evict_and_replace"]


def test_who_was_left_out_before_is_so_still_in_a_snapshot_of_the_first_shape() -> None:
    assert [replica.times_out for replica in unpacked(fixture(0), JobSnapshot).replicas] == [1, 0, 0]


def test_no_field_of_todays_shape_is_taken_away_without_a_new_number() -> None:
    kept, now = json.loads(FIELDS.read_text()), fields_of_today()
    gone = {kind: sorted(set(names) - set(now.get(kind, ()))) for kind, names in kept.items()}
    assert {kind: names for kind, names in gone.items() if names} == {}, "raise upcast.SHAPE, and keep a fixture"


def test_every_shape_has_its_step_and_a_newer_one_is_refused() -> None:
    assert len(STEPS) == SHAPE and sorted(FOLDER.glob("*.b64"))[-1].stem == str(SHAPE)
    with pytest.raises(ValueError, match="newer release"):
        upcast({}, SHAPE + 1)


@pytest.mark.parametrize("blob", [b"", b"\x28\xb5\x2f\xfdnot", b"\x01\x00\x00"], ids=["none", "damaged", "no frame"])
def test_what_cannot_be_read_says_why(blob: bytes) -> None:
    with pytest.raises(ValueError, match="snapshot"):
        unpacked(blob, JobSnapshot)


def test_what_is_packed_comes_back_equal() -> None:
    assert unpacked(packed(lost()), JobSnapshot) == lost()
    fleet = FleetSnapshot(now_s=1.0, signals=(signal("xid", node_id="n1", value=79.0),))
    assert unpacked(packed(fleet), FleetSnapshot) == fleet


def recorded(config: PolicyConfig = CONFIG) -> tuple[Any, dict[str, Any]]:
    (decision,) = decide(lost(), config).decisions
    return decision, dict(json.loads(json.dumps(content_of(decision))))


def test_the_same_policy_gives_the_same_bytes() -> None:
    decision, row = recorded()
    again = decide(unpacked(packed(lost()), JobSnapshot), CONFIG).decisions
    assert differing(row, found(again, decision.key, decision.mode)) == ()


def test_a_number_is_the_same_however_a_database_spells_it() -> None:
    decision, row = recorded()
    assert row["cost_gpu_s"] is not None
    whole = change(decision, cost_gpu_s=30.0, evidence={"n": 2})
    assert differing({**row, "cost_gpu_s": 30, "evidence": {"n": 2.0}}, whole) == ()
    assert differing({**row, "cost_gpu_s": 31, "evidence": {"n": True}}, whole) == ("evidence", "cost_gpu_s")


def test_a_rule_that_decides_otherwise_now_is_named_by_what_differs() -> None:
    decision, row = recorded()
    assert differing(row, change(decision, reason_code="another", sentence="Other words.")) == (
        "reason_code",
        "sentence",
    )


def test_another_policy_is_compared_by_decision() -> None:
    before = decide(lost(), CONFIG).decisions
    held = decide(lost(), config_of({"rule_modes": {"replica_failure": "recommend"}})).decisions
    assert [each.kind for each in compared(before, held)] == [Kind.HELD]
    assert [each.kind for each in compared(held, before)] == [Kind.FREED]
    assert [each.kind for each in compared(before, ())] == [Kind.DROPPED]
    assert [each.kind for each in compared((), before)] == [Kind.ADDED]
    assert compared(before, before) == ()
    other = change(before[0], key="1:another", choice="restart")
    (instead,) = compared(before, (other,))
    assert (instead.kind, instead.before, instead.after) == (Kind.INSTEAD, before[0], other)
    (changed,) = compared(before, (change(before[0], cost_gpu_s=1.0),))
    assert changed.kind is Kind.CHANGED
