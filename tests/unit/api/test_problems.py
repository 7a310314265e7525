"""The table of problems is whole, and every foreseen exception finds its place in it."""

import msgspec
import pytest
from django.core.exceptions import RequestDataTooBig
from django.db import OperationalError
from django.http import Http404

from controlplane.api.bodies import EvictReplica, told
from controlplane.api.errors import to_problem
from controlplane.api.problems import BY_STATUS, TABLE, Kind
from controlplane.runtime import errors


def test_every_kind_has_a_status_and_a_title() -> None:
    assert set(TABLE) == set(Kind)
    assert all(400 <= status < 600 and title for status, title in TABLE.values())
    assert all(TABLE[kind][0] == status for status, kind in BY_STATUS.items())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.NotFound("x"), Kind.NOT_FOUND),
        (errors.Conflict("x"), Kind.CONFLICT),
        (errors.LostRace("x"), Kind.CONFLICT),
        (errors.Denied("x"), Kind.FORBIDDEN),
        (errors.Invalid("x"), Kind.INVALID),
        (errors.ServiceError("x"), Kind.CONFLICT),
        (Http404(), Kind.NOT_FOUND),
        (RequestDataTooBig(), Kind.TOO_LARGE),
        (OperationalError("locked"), Kind.UNAVAILABLE),
    ],
)
def test_foreseen_exceptions_have_their_problem(error: Exception, kind: Kind) -> None:
    problem = to_problem(error)
    assert problem is not None
    assert problem.kind is kind


def test_what_nobody_foresaw_is_not_dressed_up() -> None:
    assert to_problem(ZeroDivisionError()) is None


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b'{"reason": "r"}', "/replica"),
        (b'{"replica": 0, "reason": ""}', "/reason"),
        (b'{"replica": "0", "reason": "r"}', "/replica"),
        (b'{"replica": 0, "reason": "r", "extra": 1}', "/extra"),
    ],
)
def test_a_faulty_body_is_pointed_at(body: bytes, pointer: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(body, type=EvictReplica)
    assert told(caught.value, EvictReplica).pointer == pointer
