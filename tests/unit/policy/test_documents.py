"""Policy documents: what is refused and why, what a job may narrow, and the policy that comes of it."""

from typing import Any

import pytest

from controlplane.policy.config import PolicyConfig
from controlplane.policy.document import (
    DEFAULT,
    MIN_SAMPLES,
    Above,
    Below,
    Ground,
    Measure,
    changes,
    checked,
    config_of,
    conflicts,
    from_content,
    narrowed,
    plain,
)
from controlplane.policy.fields import BY_NAME, FIELDS, TABLES, Field, Safer
from controlplane.policy.rules.registry import REMEDIAL
from controlplane.protocol.states import Mode

NOTHING = Ground()
OF_JOBS = [field for field in FIELDS if field.narrows]
OF_THE_FLEET = [field for field in FIELDS if not field.narrows]


def faults(document: object, fleet: PolicyConfig | None = None, ground: Ground = NOTHING) -> list[tuple[str, str]]:
    above = Above(of="a job's", levels=(("the fleet's", fleet),)) if fleet is not None else None
    return [(fault.pointer, fault.message) for fault in checked(document, ground, above)]


def moved(field: Field, *, safer: bool) -> float:
    """A value between the default and its bound, on one side."""
    here = float(getattr(DEFAULT, field.name))
    bound = field.most if (field.safer is Safer.HIGHER) == safer else field.least
    return whole(field, (here + bound) / 2.0)


def whole(field: Field, value: float) -> float:
    return int(value) if field.whole else value


def test_every_field_of_the_policy_has_its_row_and_no_other_has_one() -> None:
    assert {*BY_NAME, *TABLES} == set(PolicyConfig.__struct_fields__)


def test_every_default_passes_its_own_checks_and_says_where_it_comes_from() -> None:
    document = {field.name: getattr(DEFAULT, field.name) for field in FIELDS}
    assert faults(document) == []
    assert config_of(document) == DEFAULT
    assert all(field.because and field.what and field.source for field in FIELDS)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_value_out_of_its_range_is_refused_with_the_range(field: Field) -> None:
    over = whole(field, field.most + 1)
    (pointer, message), *_ = faults({field.name: over})
    assert pointer == f"/{field.name}" and "out of range" in message


@pytest.mark.parametrize("name", [field.name for field in FIELDS if field.whole])
def test_a_cap_of_zero_is_refused_with_what_to_do_instead(name: str) -> None:
    (fault,) = checked({name: 0}, NOTHING)
    assert "cap of zero" in fault.message and "observe" in fault.fix


@pytest.mark.parametrize(
    ("document", "pointer", "words"),
    [
        ([], "", "a mapping"),
        ({"leese_s": 10}, "/leese_s", "no such field"),
        ({7: 10}, "/7", "no such field"),
        ({"lease_s": "10"}, "/lease_s", "expected a number"),
        ({"lease_s": True}, "/lease_s", "expected a number"),
        ({"lease_s": float("nan")}, "/lease_s", "out of range"),
        ({"lease_s": 10**400}, "/lease_s", "out of range"),
        ({"max_acts": 2.5}, "/max_acts", "expected a whole number"),
        ({"xid_overrides": [63]}, "/xid_overrides", "expected a mapping"),
        ({"xid_overrides": {99999: "ignore"}}, "/xid_overrides/99999", "not in the catalogue"),
        ({"xid_overrides": {63: "shrug"}}, "/xid_overrides/63", "is no action"),
        ({"rule_modes": "observe"}, "/rule_modes", "expected a mapping"),
        ({"rule_modes": {"meteor": "observe"}}, "/rule_modes/meteor", "no rule with a mode"),
        ({"rule_modes": {"lifecycle": "observe"}}, "/rule_modes/lifecycle", "no rule with a mode"),
        ({"rule_modes": {"straggler": "maybe"}}, "/rule_modes/straggler", "is no mode"),
    ],
)
def test_what_a_policy_cannot_say_is_refused_where_it_stands(document: Any, pointer: str, words: str) -> None:
    (found,) = faults(document)
    assert found[0] == pointer and words in found[1]


def test_every_fault_is_named_at_once() -> None:
    document = {"leese_s": 1, "max_acts": 0, "rule_modes": {"meteor": "observe", "straggler": "maybe"}}
    assert [pointer for pointer, _ in faults(document)] == [
        "/leese_s",
        "/max_acts",
        "/rule_modes/meteor",
        "/rule_modes/straggler",
    ]


@pytest.mark.parametrize("field", [field for field in FIELDS if field.within], ids=lambda field: field.name)
def test_a_threshold_that_another_one_always_comes_before_is_refused(field: Field) -> None:
    limit = BY_NAME[field.within]
    high = whole(field, min(field.most, limit.most))
    low = whole(field, max(limit.least, field.least))
    assert high > low
    message = dict(faults({field.name: high, field.within: low}))[f"/{field.name}"]
    assert "cannot be reached" in message and field.within in message


@pytest.mark.parametrize(("name", "value", "fits"), [("correlated_min_nodes", 5, 4), ("correlated_min_devices", 8, 7)])
def test_a_breaker_that_the_fleet_is_too_small_for_is_refused(name: str, value: int, fits: int) -> None:
    small = Ground(nodes=4, devices=8)
    ((pointer, message),) = faults({name: value}, ground=small)
    assert pointer == f"/{name}" and "cannot be reached" in message
    assert faults({name: fits}, ground=small) == []
    assert faults({name: value}) == [], "a fleet whose size is not known refuses nothing"


def test_a_timeout_below_what_was_measured_is_refused_with_the_measurement() -> None:
    seen = Measure(p99_s=12.5, samples=400, what="a step")
    ((pointer, message),) = faults({"lease_s": 11}, ground=Ground(measured={"lease_s": seen}))
    assert pointer == "/lease_s" and "12.5 s (p99 of 400)" in message
    assert faults({"lease_s": 13}, ground=Ground(measured={"lease_s": seen})) == []
    assert faults({}, ground=Ground(measured={"lease_s": seen})) == [], "a default is nobody's demand"
    few = Measure(p99_s=12.5, samples=MIN_SAMPLES - 1, what="a step")
    assert faults({"lease_s": 11}, ground=Ground(measured={"lease_s": few})) == []


@pytest.mark.parametrize("field", OF_JOBS, ids=lambda field: field.name)
def test_a_job_may_move_a_field_towards_fewer_or_later_acts_and_never_the_other_way(field: Field) -> None:
    narrower, wider = moved(field, safer=True), moved(field, safer=False)
    pair = {field.within: BY_NAME[field.within].most} if field.within else {}
    fleet = config_of({**pair, **{f.name: f.least for f in FIELDS if f.within == field.name}})
    assert narrower != wider
    assert faults({field.name: narrower}, fleet) == []
    assert getattr(narrowed(fleet, {field.name: narrower}), field.name) == narrower
    ((pointer, message),) = faults({field.name: wider}, fleet)
    assert pointer == f"/{field.name}" and "may only narrow" in message
    assert getattr(narrowed(fleet, {field.name: wider}), field.name) == getattr(fleet, field.name)


@pytest.mark.parametrize("field", OF_THE_FLEET, ids=lambda field: field.name)
def test_what_would_have_no_effect_for_one_job_is_the_fleets_alone(field: Field) -> None:
    value = getattr(DEFAULT, field.name)
    ((pointer, message),) = faults({field.name: value}, DEFAULT)
    assert pointer == f"/{field.name}" and "fleet's alone" in message
    assert narrowed(DEFAULT, {field.name: moved(field, safer=True)}) == DEFAULT


def test_the_narrower_counts_when_the_fleet_becomes_narrower_than_its_job() -> None:
    own = {"lease_s": 20, "max_acts": 10, "rule_modes": {"straggler": "recommend"}}
    stricter = config_of({"lease_s": 30, "max_acts": 5, "rule_modes": {"straggler": "observe"}})
    assert narrowed(stricter, own) == stricter
    milder = narrowed(config_of({"lease_s": 15}), own)
    assert (milder.lease_s, milder.max_acts, milder.rule_modes) == (20.0, 10, {"straggler": Mode.RECOMMEND})


def test_a_job_may_lower_the_mode_of_a_rule_and_not_raise_it() -> None:
    fleet = config_of({"rule_modes": {"straggler": "recommend"}})
    assert faults({"rule_modes": {"straggler": "observe", "restart": "recommend"}}, fleet) == []
    ((pointer, message),) = faults({"rule_modes": {"straggler": "enforce"}}, fleet)
    assert pointer == "/rule_modes/straggler" and "may only narrow" in message
    lowered = narrowed(fleet, {"rule_modes": {"straggler": "observe"}})
    assert lowered.rule_modes == {"straggler": Mode.OBSERVE}


def test_devices_are_no_jobs() -> None:
    ((pointer, message),) = faults({"xid_overrides": {63: "ignore"}}, DEFAULT)
    assert pointer == "/xid_overrides" and "fleet's alone" in message


def test_a_document_means_the_same_after_it_was_stored() -> None:
    document = {"max_acts": 9, "lease_s": 20, "xid_overrides": {119: "reset", 63: "ignore"}, "rule_modes": {}}
    stored = plain(document)
    assert list(stored) == ["lease_s", "max_acts", "xid_overrides"]
    assert list(stored["xid_overrides"]) == ["63", "119"]
    assert checked(stored, NOTHING) == () and config_of(stored) == config_of(document)


def test_a_policy_is_read_back_whole_and_by_a_release_with_other_fields() -> None:
    config = config_of({"max_acts": 9, "xid_overrides": {63: "ignore"}, "rule_modes": {"straggler": "observe"}})
    text = config.content
    assert from_content(text) == config and from_content(text).version == config.version
    gone = text.replace('"lease_s":10.0,', "").replace("{", '{"meteor_s":1.0,', 1)
    assert from_content(gone) == config


def test_changes_name_fields_and_rows_of_tables() -> None:
    after = config_of({"max_acts": 9, "xid_overrides": {63: "ignore"}, "rule_modes": {"straggler": "observe"}})
    found = [(change.field, change.before, change.after) for change in changes(DEFAULT, after)]
    assert found == [
        ("max_acts", 20, 9),
        ("xid_overrides.63", None, "ignore"),
        ("rule_modes.straggler", None, "observe"),
    ]
    assert changes(after, after) == ()


def test_every_rule_that_obeys_a_mode_may_be_lowered() -> None:
    document = {"rule_modes": dict.fromkeys(sorted(REMEDIAL), "observe")}
    assert faults(document) == [] and set(config_of(document).rule_modes) == set(REMEDIAL)


FLEET = config_of({"lease_s": 20, "witness_s": 10, "rule_modes": {"straggler": "recommend"}})
PROJECT = {"lease_s": 30, "rule_modes": {"restart": "observe"}}
OF_A_JOB = Above(of="a job's", levels=(("the fleet's", FLEET), ("the project vision's", narrowed(FLEET, PROJECT))))


@pytest.mark.parametrize(
    ("document", "pointer", "words"),
    [
        ({"lease_s": 25}, "/lease_s", "25 is below the project vision's 30"),
        ({"witness_s": 5}, "/witness_s", "5 is below the fleet's 10"),
        ({"rule_modes": {"restart": "enforce"}}, "/rule_modes/restart", "the project vision's mode is observe"),
        ({"rule_modes": {"straggler": "enforce"}}, "/rule_modes/straggler", "the fleet's mode is recommend"),
    ],
)
def test_who_widens_learns_whose_document_stands_in_the_way(document: Any, pointer: str, words: str) -> None:
    (fault,) = checked(document, NOTHING, OF_A_JOB)
    assert fault.pointer == pointer and f"a job's policy may only narrow: {words}" in fault.message


def test_a_change_of_the_fleet_that_leaves_projects_out_of_reach_is_refused_with_their_names() -> None:
    whose = [f"the project p{number}" for number in range(7)]
    below = [Below(whose=each, documents=({"witness_s": 15},)) for each in whose]
    (fault,) = conflicts(FLEET, config_of({"lease_s": 12, "witness_s": 10}), below)
    assert fault.pointer == "/lease_s" and "witness_s 15 could not be reached: lease_s would be 12" in fault.message
    assert "the project p0, the project p1" in fault.message and "p4 and 2 more" in fault.message
    assert conflicts(FLEET, config_of({"lease_s": 16}), below) == ()


def test_what_is_out_of_reach_already_holds_no_change_up() -> None:
    below = [Below(whose="the project a", documents=({"witness_s": 25},))]
    assert conflicts(FLEET, config_of({"lease_s": 12}), below) == ()
    assert conflicts(config_of({"lease_s": 40}), FLEET, below) != ()
