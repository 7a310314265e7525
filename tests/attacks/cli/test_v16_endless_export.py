"""A server that gives the audit log for ever ends `holdfast audit export` all the same."""

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.cli.commands.audit import rows
from controlplane.cli.exits import CliError

MOST = 50


def server(page: Callable[[int], list[Any]], newest: int) -> Any:
    """As a client of it, whose patience ends after MOST pages."""
    asked = count()

    def export(*, after_seq: int, limit: int) -> list[Any]:
        assert next(asked) < MOST, "the command is in an endless loop"
        return page(after_seq)

    return SimpleNamespace(audit=SimpleNamespace(export=export, state=lambda: SimpleNamespace(newest_seq=newest)))


def test_new_rows_without_end_stop_at_the_row_that_was_the_newest() -> None:
    found = rows(server(lambda after: [{"seq": after + 1}, {"seq": after + 2}], 7), {})
    assert [row["seq"] for row in found] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("page", [[{"seq": 1}], [{"seq": 2}, {"seq": 1}], [{}], [{"seq": "9"}], [{"seq": True}]])
def test_rows_again_or_without_a_number_are_an_error(page: list[Any]) -> None:
    with pytest.raises(CliError, match="a row again"):
        list(rows(server(lambda after: page, 7), {}))


def test_no_rows_end_it() -> None:
    assert list(rows(server(lambda after: [], 7), {})) == []
