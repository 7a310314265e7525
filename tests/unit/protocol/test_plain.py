"""What may come in, and how it is shown."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.protocol.plain import MASKED, MAX_DEPTH, first_fault, shown, text_fault, without_secrets


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"a": [1, "x\x00"]}, "/a/1"),
        ({"a": {"\ud800": 1}}, "/a"),
        ([2**63], "/0"),
        ([-(2**63) - 1], "/0"),
        ({"a/b~c": "\udfff"}, "/a~1b~0c"),
        ("\x00", ""),
    ],
)
def test_a_fault_is_pointed_at(document: Any, pointer: str) -> None:
    found = first_fault(document)
    assert found is not None
    assert found[0] == pointer


@pytest.mark.parametrize(
    "document", [2**63 - 1, -(2**63), True, None, 1.5, "\U0001f600", {"a": [{}]}, nested(MAX_DEPTH)]
)
def test_what_can_be_kept_passes(document: Any) -> None:
    assert first_fault(document) is None


def test_any_depth_is_refused_without_recursion() -> None:
    assert first_fault(nested(MAX_DEPTH + 1)) is not None
    assert first_fault(nested(100_000)) is not None


@given(st.text(st.characters(exclude_categories=[])))
def test_what_passes_can_be_encoded_and_what_is_shown_always_can(text: str) -> None:
    if text_fault(text) is None:
        text.encode()
    assert shown(shown(text)) == shown(text)
    shown(text).encode()
    assert "\n" not in shown(text, layout=False)


def test_a_masked_text_says_what_kind_of_secret_it_was() -> None:
    secret = "holdfast_admin_" + "aB3_-" * 9
    assert without_secrets(json.dumps({"a": secret})) == f'{{"a": "holdfast_admin_{MASKED}"}}'
    assert without_secrets("holdfast_job is no secret") == "holdfast_job is no secret"


def test_of_a_masked_join_token_it_can_be_read_which_one_to_revoke() -> None:
    text = "found holdfast_join_jt_01K0ABCDEFGHJKMNPQRSTVWXYZ_" + "aB3_-" * 8 + " in a log"
    masked = f"found holdfast_join_jt_01K0ABCDEFGHJKMNPQRSTVWXYZ_{MASKED} in a log"
    assert without_secrets(text) == masked
    assert without_secrets(masked) == masked
    assert without_secrets("holdfast_join_" + "jt_aB" * 9) == f"holdfast_join_{MASKED}"
