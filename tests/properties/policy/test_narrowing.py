"""Whatever fleet, project and job write: what is decided by is never wider than any of them, in any field."""

import csv
import os
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import controlplane.policy
from controlplane.policy.config import PolicyConfig
from controlplane.policy.document import DEFAULT, Above, Below, Ground, checked, config_of, conflicts, narrowed
from controlplane.policy.rules.registry import REMEDIAL

EXAMPLES = 300 if "HOLDFAST_TEST_RELEASE" in os.environ else 100
MODES = ("observe", "recommend", "enforce")
TABLE = Path(controlplane.policy.__file__).with_name("data") / "policy_fields.csv"
ROWS = [*csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines())]
SIGN = {row["name"]: {"higher": 1, "lower": -1, "": 0}[row["safer"]] for row in ROWS}
"""By the table itself: 1 where more is narrower, -1 where less is, 0 where nobody below the fleet may set it."""
WITHIN = {row["name"]: row["within"] for row in ROWS if row["within"]}


def values(row: dict[str, str]) -> st.SearchStrategy[float]:
    least, most = float(row["least"]), float(row["most"])
    if isinstance(getattr(DEFAULT, row["name"]), int):
        return st.integers(int(least), int(most))
    return st.floats(least, most, allow_nan=False)


documents: st.SearchStrategy[dict[str, Any]] = st.builds(
    lambda fields, modes: fields | ({"rule_modes": modes} if modes else {}),
    st.fixed_dictionaries({}, optional={row["name"]: values(row) for row in ROWS}),
    st.dictionaries(st.sampled_from(sorted(REMEDIAL)), st.sampled_from(MODES), max_size=4),
)


def mode(config: PolicyConfig, rule: str) -> int:
    return MODES.index(config.rule_modes.get(rule, MODES[-1]))


def no_wider(config: PolicyConfig, above: PolicyConfig) -> bool:
    moved = {name: getattr(config, name) - getattr(above, name) for name in SIGN}
    fields = all(moved[name] * sign >= 0 if sign else moved[name] == 0 for name, sign in SIGN.items())
    return fields and all(mode(config, rule) <= mode(above, rule) for rule in REMEDIAL)


@settings(max_examples=EXAMPLES)
@given(documents, documents, documents)
def test_what_is_decided_by_is_no_wider_than_any_scope_above_it(
    fleet: dict[str, Any], project: dict[str, Any], job: dict[str, Any]
) -> None:
    of_fleet = config_of(fleet)
    of_project = narrowed(of_fleet, project)
    of_job = narrowed(of_project, job)
    assert no_wider(of_project, of_fleet) and no_wider(of_job, of_project) and no_wider(of_job, of_fleet)
    for document in (project, job):
        own = config_of(document)
        for name in document.keys() & SIGN.keys():
            assert (getattr(of_job, name) - getattr(own, name)) * SIGN[name] >= 0, name
        assert all(mode(of_job, rule) <= mode(own, rule) for rule in document.get("rule_modes", {}))
    assert of_job.xid_overrides == of_fleet.xid_overrides


@settings(max_examples=EXAMPLES)
@given(documents, documents, documents)
def test_what_is_accepted_means_what_it_says_and_what_widens_is_refused_there(
    fleet: dict[str, Any], project: dict[str, Any], job: dict[str, Any]
) -> None:
    of_fleet = config_of(fleet)
    of_project = narrowed(of_fleet, project)
    for document, above in (
        (project, Above(of="a project's", levels=(("the fleet's", of_fleet),))),
        (job, Above(of="a job's", levels=(("the fleet's", of_fleet), ("the project's", of_project)))),
    ):
        wider = {
            f"/{name}"
            for name in document.keys() & SIGN.keys()
            if SIGN[name] == 0 or (document[name] - getattr(above.config, name)) * SIGN[name] < 0
        }
        for rule, word in document.get("rule_modes", {}).items():
            wider |= {f"/rule_modes/{rule}"} if MODES.index(word) > mode(above.config, rule) else set()
        faults = checked(document, Ground(), above)
        if wider:
            assert {fault.pointer for fault in faults} == wider
        if not faults:
            made = narrowed(above.config, document)
            assert all(getattr(made, name) == document[name] for name in document.keys() & SIGN.keys())


def unreachable(config: PolicyConfig) -> set[str]:
    return {name for name, limit in WITHIN.items() if getattr(config, name) > getattr(config, limit)}


@settings(max_examples=EXAMPLES)
@given(documents, documents, documents, documents)
def test_a_change_above_is_refused_exactly_where_it_leaves_a_threshold_below_out_of_reach(
    was: dict[str, Any], would: dict[str, Any], project: dict[str, Any], job: dict[str, Any]
) -> None:
    before, after = config_of(was), config_of(would)
    below = [Below(whose="the project a", documents=(project,)), Below(whose="train", documents=(project, job))]
    faults = conflicts(before, after, below)
    for each in below:
        pair = []
        for config in (before, after):
            for document in each.documents:
                config = narrowed(config, document)
            pair.append(unreachable(config))
        fresh = pair[1] - pair[0]
        named = [fault for fault in faults if each.whose in fault.message]
        assert {name for name in fresh if any(f" {name} " in fault.message for fault in named)} == fresh
        assert bool(named) == bool(fresh)
