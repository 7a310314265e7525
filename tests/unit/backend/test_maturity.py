"""Each resilience feature has one label, which says no more than was shown."""

import re
from collections.abc import Iterator

import msgspec
import pytest

from controlplane.jobs.maturity import FEATURES, ON_A_GPU, Feature, Label, Layer, for_the_page, page
from controlplane.protocol.spec import Resiliency, TrainSpec
from tests.house.tree import ROOT, read

OF_OTHERS = {"fault_tolerance", "straggler", "preemption", "async_save", "local_tier", "rerun", "in_process"}
"""What Megatron-Bridge and nvidia-resiliency-ext give labels to."""


def fields_of(kind: type) -> dict[str, object]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}


def named(prefix: str) -> list[str]:
    return [field.removeprefix(prefix) for each in FEATURES for field in each.fields if field.startswith(prefix)]


def test_each_field_of_the_resiliency_section_has_one_label_and_each_label_a_field_that_there_is() -> None:
    assert sorted(named("resiliency.")) == sorted(fields_of(Resiliency))
    for path in named(""):
        kind: object = TrainSpec
        for name in path.split("."):
            assert isinstance(kind, type) and name in fields_of(kind), path
            kind = fields_of(kind)[name]


def test_the_features_that_others_label_are_labelled_and_no_layer_is_without_one() -> None:
    names = [each.name for each in FEATURES]
    assert len(set(names)) == len(names) and set(names) >= OF_OTHERS
    assert {each.layer for each in FEATURES} == set(Layer)


def test_nothing_that_works_on_a_device_is_in_production_before_a_device_was_seen() -> None:
    assert ("no card was ever seen" in read(ROOT / "docs" / "gpu.md")) == (not ON_A_GPU)
    for each in FEATURES:
        assert each.label is (Label.EXPERIMENTAL if each.why else Label.PRODUCTION), each.name
        assert each.label is Label.EXPERIMENTAL or not each.on_device or each.name in ON_A_GPU, each.name


def proofs() -> Iterator[tuple[Feature, str]]:
    yield from ((each, proof) for each in FEATURES for proof in each.proof)


@pytest.mark.parametrize(("feature", "proof"), [pytest.param(*each, id=each[0].name) for each in proofs()])
def test_what_was_shown_was_shown_by_a_test_that_there_is(feature: Feature, proof: str) -> None:
    path, _, name = proof.partition("::")
    assert (ROOT / path).is_file(), feature.name
    assert not name or re.search(rf"^def {name}\b", read(ROOT / path), re.MULTILINE), feature.name


def test_page_and_document_have_every_label() -> None:
    for each in FEATURES:
        assert f"| {each.title} | {each.layer} | {each.label} |" in page()
        assert f'"name": "{each.name}"' in for_the_page()
