"""An exchange that cannot be is not prepared for."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import Member, MemberRole, View
from trainer.replica.exchange import Exchange
from trainer.replica.standing import Standing


class Alone:
    """The votes of a replica of one rank."""

    size = 1

    def counts(self, mine: Sequence[bool]) -> list[int]:
        return [int(flag) for flag in mine]


class Staged(Exception):
    """The engine was asked for its vector."""


def stage(*args: object, **kwargs: object) -> None:
    raise Staged


@pytest.mark.parametrize("is_over", [True, False])
def test_a_rank_that_knows_of_a_newer_view_stages_nothing(is_over: bool) -> None:
    view = View("job", 1, 1, (Member(0, 1, MemberRole.CONTRIBUTOR),))
    standing = Standing(RankRef("job", 1, 0, 1, 0), 5, role=MemberRole.CONTRIBUTOR, epoch=1, view=view)
    exchange = Exchange(
        standing,
        SimpleNamespace(stage=stage),
        outer=SimpleNamespace(is_over=is_over),
        votes=Alone(),
        donor=None,
        catch_up=None,
        fence=None,
        send=print,
        wishes=lambda: (False,) * 5,
    )
    if is_over:
        assert exchange.attempt() is None
        return
    with pytest.raises(Staged):
        exchange.attempt()
