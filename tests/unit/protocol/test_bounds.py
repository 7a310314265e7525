"""The ranges of the protocol are those of the columns that its values end in."""

import typing
from collections.abc import Iterator

import msgspec
import pytest

from controlplane.protocol import bounds, doc, flight, spec
from controlplane.protocol.codec import decode_line, encode_line
from controlplane.protocol.errors import MalformedFrame
from controlplane.protocol.rank import OuterError, StepReport, TrainingDone


def test_both_ends_of_a_range_are_allowed_and_nothing_beyond() -> None:
    for step in (0, bounds.MAX_INT):
        assert decode_line("from_rank", encode_line(TrainingDone(step)).rstrip()) == TrainingDone(step)
    for step in (-1, bounds.MAX_INT + 1, 2**63 + 5, 2**70):
        with pytest.raises(MalformedFrame, match="step"):
            decode_line("from_rank", encode_line(TrainingDone(step)).rstrip())


@pytest.mark.parametrize("text", ["a\0b", "x" * (bounds.MAX_ERROR_CHARS + 1)])
def test_a_text_that_no_column_takes_is_refused(text: str) -> None:
    with pytest.raises(MalformedFrame, match="error"):
        decode_line("from_rank", encode_line(OuterError(1, 1, text)).rstrip())


def test_newlines_and_other_scripts_are_no_offence() -> None:
    said = OuterError(1, 1, "Traceback:\n\tpeer \u7aef closed")
    assert decode_line("from_rank", encode_line(said).rstrip()) == said


def test_a_step_with_more_micro_batches_than_a_report_may_name_is_refused() -> None:
    most = StepReport(1, 1, 1.0, 1, tuple(range(bounds.MAX_MICRO_BATCHES)), trained=tuple(range(8192)))
    assert decode_line("from_rank", encode_line(most).rstrip()) == most
    with pytest.raises(MalformedFrame, match="micro_batches"):
        decode_line("from_rank", encode_line(msgspec.structs.replace(most, micro_batches=(0,) * 8193)).rstrip())


def test_what_is_fitted_can_be_stored() -> None:
    assert bounds.fitted("a\0\ud800b", 3) == "a\ufffd\ufffd"
    assert bounds.fitted_tail("xyz\0", 2) == "z\ufffd"
    assert bounds.unstorable({"a": [1, 2.0, None, True, "b"]}) is None


@pytest.mark.parametrize("value", [2**53, float("nan"), float("inf"), "\0", {"\0": 1}, [["\udc00"]], b"x"])
def test_what_cannot_be_stored_is_named(value: object) -> None:
    assert bounds.unstorable({"a": [value]})


# Why each may be without a range: `StepReport.__post_init__` puts what is not finite into words.
WITHOUT = {("StepReport", "loss")}


def unbounded(hint: object) -> Iterator[str]:
    """What in a field's type has no range: a bare number or text, a list of any length."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        inner, *limits = arguments
        ranges = [limit for limit in limits if isinstance(limit, msgspec.Meta)]
        ends = [end for limit in ranges for end in (limit.ge, limit.le) if end is not None]
        longest = [limit.max_length for limit in ranges if limit.max_length is not None]
        if (inner in (int, float) and len(ends) < 2) or (_is_long(inner) and not longest):
            yield f"{hint} has no range"
        if inner is int and not all(-bounds.MAX_INT <= end <= bounds.MAX_INT for end in ends):
            yield f"{hint} is wider than what all JSON readers agree on"
        for part in typing.get_args(inner):
            yield from unbounded(part)
    elif hint in (int, float) or _is_long(hint):
        yield str(hint)
    elif origin is not typing.Literal:
        for part in arguments:
            yield from unbounded(part)


def _is_long(hint: object) -> bool:
    """What may be of any length."""
    origin = typing.get_origin(hint)
    return hint in (str, bytes) or origin is dict or (origin is tuple and Ellipsis in typing.get_args(hint))


def test_no_message_has_a_field_without_a_range() -> None:
    modules = [module for _, _, module in doc.DOORS if module is not spec] + [flight]
    found = {
        (kind.__name__, name): list(unbounded(hint))
        for module in modules
        for kind in doc._structs(module)
        for name, hint in typing.get_type_hints(kind, include_extras=True).items()
    }
    assert len(found) > 200
    assert {field for field, faults in found.items() if faults} == WITHOUT
