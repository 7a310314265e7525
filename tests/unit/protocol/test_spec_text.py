"""Bytes become a document, or a refusal that names the line, in bounded work."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.protocol.spec_text import MAX_SPEC_BYTES, SpecTextError, parse_json, parse_yaml

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
MERGE_BOMB = "a0: &a0 {k: v}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12)
)


def test_yaml_and_json_give_the_same_document() -> None:
    assert parse_yaml(b"a: [1, 2.5, null, text]") == parse_json(b'{"a": [1, 2.5, null, "text"]}')


def test_anchors_in_good_faith_are_followed() -> None:
    assert parse_yaml(b"base: &b {x: 1}\nother: {<<: *b, y: 2}") == {"base": {"x": 1}, "other": {"x": 1, "y": 2}}


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        MERGE_BOMB,
        "a: &a [*a]",
        "[" * 100 + "]" * 100,
        "!!python/object/apply:os.system [id]",
        "a: 1\na: 2",
        "a: [1",
        "a: *nowhere",
        "when: 2024-13-45",
        "--- 1\n--- 2",
        "n: " + "9" * 5000,
        "- x\n" * 30_000,
    ],
    ids=lambda text: text[:16],
)
def test_hostile_and_faulty_yaml_is_refused(text: str) -> None:
    with pytest.raises(SpecTextError):
        parse_yaml(text.encode())


@pytest.mark.parametrize("data", [b'{"a": 1, "a": 2}', b'{"a": NaN}', b"{", b"[" * 5000, b"\xff", b"1" * 5000])
def test_hostile_and_faulty_json_is_refused(data: bytes) -> None:
    with pytest.raises(SpecTextError):
        parse_json(data)


def test_a_refusal_names_the_line() -> None:
    with pytest.raises(SpecTextError, match="line 3"):
        parse_yaml(b"a: 1\nb: 2\na: 3\n")


@pytest.mark.parametrize("parse", [parse_yaml, parse_json])
def test_text_over_the_limit_is_refused_unread(parse: object) -> None:
    with pytest.raises(SpecTextError, match="limit"):
        parse(b" " * (MAX_SPEC_BYTES + 1))  # type: ignore[operator]


def test_a_bomb_costs_no_more_cpu_than_a_spec() -> None:
    """CPU time of this thread, not wall time; a bomb that is expanded takes minutes."""
    before_s = time.thread_time()
    for text in (BOMB, MERGE_BOMB):
        with pytest.raises(SpecTextError):
            parse_yaml(text.encode())
    assert time.thread_time() - before_s < 1.0


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.text(alphabet="{}[]&*!:-<> \n'\"#|ab0", max_size=80).map(str.encode))
def test_any_bytes_give_a_document_or_a_refusal(data: bytes) -> None:
    for parse in (parse_yaml, parse_json):
        try:
            parse(data)
        except SpecTextError:
            continue
