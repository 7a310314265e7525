"""A bill is the ledger's seconds and no others, whatever is charged."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.ledger.account import account
from controlplane.policy.ledger.bill import Terms, charged_gpu_s, ends_s, entries, month_of
from controlplane.protocol.ledger import CHARGED, CauseKind, TimeClass, charged_classes
from tests.properties.policy.ledger_worlds import UNTIL_S, worlds

WINDOWS = st.tuples(st.integers(0, UNTIL_S), st.integers(0, UNTIL_S)).map(sorted)
TERMS = st.builds(
    Terms,
    classes=st.lists(st.sampled_from(list(TimeClass)), unique=True).map(tuple),
    incidents=st.booleans(),
    price=st.none() | st.floats(0.01, 100.0),
)


@given(worlds(), WINDOWS, TERMS)
@settings(max_examples=100, deadline=None)
def test_its_entries_sum_to_what_the_ledger_says_that_jobs_held_class_by_class(facts, window, terms):
    ledger = account(facts, *window)
    wanted = defaultdict[tuple[str, str], float](float)
    for key, gpu_s in ledger.amounts.items():
        if key.job:
            wanted[key.job, key.of] += gpu_s
    found = defaultdict[tuple[str, str], float](float)
    for each in entries(ledger.amounts, terms):
        found[each.job, each.of] += each.gpu_s
    assert dict(found) == pytest.approx({key: gpu_s for key, gpu_s in wanted.items() if key in found})
    assert sum(found.values()) == pytest.approx(sum(wanted.values()), abs=1e-6)


@given(worlds(), st.sampled_from([False, True]), st.none() | st.floats(0.01, 100.0))
@settings(max_examples=100, deadline=None)
def test_what_an_incident_has_cost_is_charged_by_no_terms_that_do_not_say_so(facts, incidents, price):
    terms = Terms(classes=tuple(of for of in TimeClass if of != TimeClass.STALL), incidents=incidents, price=price)
    ledger = account(facts, 0, UNTIL_S)
    owed = sum(
        gpu_s
        for key, gpu_s in ledger.amounts.items()
        if key.job and key.of in terms.classes and (terms.incidents or key.cause.kind != CauseKind.INCIDENT)
    )
    charged = charged_gpu_s(entries(ledger.amounts, terms))
    assert charged == pytest.approx(owed, abs=1e-6)
    assert terms.money(charged) == (None if terms.price is None else pytest.approx(charged / 3600.0 * terms.price))


@given(st.integers(0, 4_102_444_800))
def test_each_moment_is_in_one_month_which_it_ends(at_s):
    since_s, until_s = ends_s(month_of(at_s))
    assert since_s <= at_s < until_s
    assert month_of(until_s) != month_of(at_s)
    assert month_of(until_s - 1) == month_of(at_s)


def test_what_is_charged_unless_set_otherwise_and_what_cannot_be():
    assert charged_classes(CHARGED) == (
        TimeClass.PRODUCTIVE, TimeClass.DEGRADED, TimeClass.CHECKPOINT, TimeClass.RECOVERY, TimeClass.IDLE_SPARE,
    )  # fmt: skip
    for text in ("idle", "productive,cordoned", "gold", "down"):
        with pytest.raises(ValueError, match="no class"):
            charged_classes(text)
