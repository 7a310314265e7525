"""A changed copy of a value of the core is what `dataclasses.replace` gives."""

import dataclasses
import inspect

import pytest

from agents.core import learn, state
from agents.core.state import Refused, State, Waiting
from agents.core.values import replace
from tests.properties.agents.world import World


def test_it_is_what_the_standard_library_gives_and_the_first_stays_as_it_was() -> None:
    world = World()
    world.connect()
    before = world.state
    kept = dataclasses.replace(before)
    changed = replace(before, next_seq=before.next_seq + 1, absent_devices=frozenset({1}))
    assert isinstance(changed, State)
    assert changed == dataclasses.replace(before, next_seq=before.next_seq + 1, absent_devices=frozenset({1}))
    assert before == kept and changed != before
    assert replace(Waiting(), count=2) == Waiting(count=2)


def test_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(KeyError):
        replace(Refused(), cuont=1)


def test_values_of_the_core_check_nothing_when_they_are_made_and_have_only_fields() -> None:
    """Else a copy would be more than its fields."""
    kinds = {
        kind for module in (state, learn) for _, kind in inspect.getmembers(module, inspect.isclass)
        if dataclasses.is_dataclass(kind) and kind.__module__.startswith("agents.core")
    }  # fmt: skip
    assert len(kinds) > 10
    for kind in kinds:
        assert not hasattr(kind, "__post_init__"), kind
        named = {field.name for field in dataclasses.fields(kind)}
        assert named <= set(vars(kind).get("__slots__", named)), kind


def test_a_value_without_slots_has_only_its_fields_and_copies_them_all() -> None:
    """It is copied by its dictionary; what is copied shares nothing that a change of it could reach."""
    world = World()
    world.connect()
    for value in (world.state, world.state.link):
        named = [field.name for field in dataclasses.fields(value)]
        assert list(vars(value)) == named
        made = replace(value)
        assert made == value and vars(made) is not vars(value)
        with pytest.raises(KeyError):
            replace(value, cuont=1)
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.since_s = 1.0
