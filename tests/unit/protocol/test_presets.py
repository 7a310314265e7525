"""A preset fills in what was left out, and only that."""

from typing import Any

import pytest

from controlplane.protocol.presets import PRESETS
from controlplane.protocol.spec import Model
from controlplane.protocol.spec_lint import effective, lint

SEEDED = {"gpt-345m": 345e6, "gpt-857m": 857e6, "gpt-1.7b": 1.7e9, "gpt-3.6b": 3.6e9, "gpt-7.1b": 7.1e9}


def document(**model: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "x"},
        "spec": {"resources": {"nodes": 1, "gpus_per_node": 1}, "model": model},
    }


def parameters(model: Model) -> int:
    """Of a GPT with tied embeddings: 12 h^2 + 13 h a layer, the vocabulary, the last norm."""
    h = model.hidden
    return model.layers * (12 * h * h + 13 * h) + model.vocab_size * h + 2 * h


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_sound_model_as_it_is(name: str) -> None:
    result = lint(document(preset=name))
    assert result.faults == ()
    assert result.spec is not None
    model = result.spec.spec.model
    assert {field: getattr(model, field) for field in PRESETS[name]} == dict(PRESETS[name])
    assert model.preset == name


@pytest.mark.parametrize(("name", "count"), SEEDED.items())
def test_a_size_is_what_its_name_says(name: str, count: float) -> None:
    result = lint(document(preset=name))
    assert result.spec is not None
    assert parameters(result.spec.spec.model) == pytest.approx(count, rel=0.035)


def test_given_fields_win_even_when_they_are_the_defaults() -> None:
    result = lint(document(preset="gpt-1.7b", layers=4, vocab_size=256))
    assert result.spec is not None
    model = result.spec.spec.model
    assert (model.layers, model.vocab_size, model.hidden) == (4, 256, 2304)


def test_the_effective_spec_shows_the_numbers_and_means_the_same_again() -> None:
    first = lint(document(preset="mixtral-8x7b"))
    assert first.spec is not None
    shown = effective(first.spec)
    assert shown["spec"]["model"]["ffn_hidden"] == 14_336
    assert shown["spec"]["model"]["family"] == "moe"
    assert lint(shown).spec == first.spec


@pytest.mark.parametrize(("name", "near"), [("gpt-345M", "gpt-345m"), ("mixtral", "mixtral-8x7b"), ("zzz", "gpt-tiny")])
def test_an_unknown_preset_is_refused_with_what_it_may_have_meant(name: str, near: str) -> None:
    faults = lint(document(preset=name)).faults
    assert [fault.pointer for fault in faults] == ["/spec/model/preset"]
    assert near in faults[0].fix
