"""A command's row: which answer may follow which, when it is sent and expires, what makes it void."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.changes.outbox import (
    ANSWERS,
    LIVE,
    RESEND_S,
    UNSENT,
    VOIDED,
    WORK_S,
    Sent,
    heard,
    is_overdue,
    is_sent_now,
    is_void,
    sent,
)
from controlplane.policy.transitions import TABLES, is_final
from controlplane.protocol.commands import Body, RequestSave, StopRanks
from controlplane.protocol.states import CommandState

OVER = tuple(state for state in CommandState if state not in LIVE)


def test_live_are_those_that_something_may_follow() -> None:
    assert {state for state in CommandState if not is_final("command", state)} == set(LIVE)


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize("said", ANSWERS)
def test_every_answer_that_changes_the_state_is_in_its_table(state: CommandState, said: str) -> None:
    found = heard(state, said, "", ttl_s=60.0)
    if found is not None:
        assert found.to in TABLES["command"][state]


@pytest.mark.parametrize("state", OVER)
@pytest.mark.parametrize("said", ANSWERS)
@pytest.mark.parametrize("data", ["", "more"])
def test_an_answer_after_the_last_changes_nothing(state: CommandState, said: str, data: str) -> None:
    assert heard(state, said, data, ttl_s=60.0) is None


def test_an_answer_of_a_newer_agent_that_is_not_known_changes_nothing() -> None:
    assert heard(CommandState.QUEUED, "postponed", "", ttl_s=60.0) is None


def test_an_answer_overtakes_the_mark_that_it_was_sent() -> None:
    found = heard(CommandState.QUEUED, "succeeded", "", ttl_s=60.0)
    assert found is not None and (found.to, found.due_in_s) == (CommandState.SUCCEEDED, None)


def test_who_acknowledges_has_its_time_and_that_for_the_work() -> None:
    found = heard(CommandState.DELIVERED, "acknowledged", "", ttl_s=60.0)
    assert found is not None and (found.again, found.due_in_s) == (False, 60.0 + WORK_S)


def test_who_says_how_far_it_is_has_as_long_again_and_who_repeats_itself_has_not() -> None:
    more = heard(CommandState.ACKNOWLEDGED, "acknowledged", "half", ttl_s=10.0)
    assert more is not None and more.again and more.due_in_s == 10.0 + WORK_S
    assert heard(CommandState.ACKNOWLEDGED, "acknowledged", "", ttl_s=10.0) is None


@given(st.lists(st.tuples(st.sampled_from([*ANSWERS, "expires"]), st.booleans()), max_size=12))
def test_answers_late_repeated_and_in_any_order_never_undo_a_newer_state(answers: list[tuple[str, bool]]) -> None:
    state, final = CommandState.QUEUED, None
    ranks = {CommandState.QUEUED: 0, CommandState.DELIVERED: 1, CommandState.ACKNOWLEDGED: 2}
    for said, more in answers:
        if said == "expires":
            after = CommandState.EXPIRED if is_overdue(state, 0.0, 1.0) else state
        else:
            found = heard(state, said, "x" if more else "", ttl_s=1.0)
            after = found.to if found is not None else state
        assert ranks.get(after, 3) >= ranks.get(state, 3)
        assert final in (None, after), "the first final answer stands"
        state, final = after, (after if after in OVER else None)


@pytest.mark.parametrize("state", CommandState)
def test_only_what_is_not_journaled_is_sent_and_nothing_after_its_time(state: CommandState) -> None:
    assert not is_sent_now(state, 0.0, 10.0, 10.0)
    assert is_sent_now(state, 0.0, 10.0, 5.0) == (state in UNSENT)


def test_what_was_sent_is_sent_again_when_it_is_due_and_not_before() -> None:
    due = [is_sent_now(CommandState.DELIVERED, 1.0 + RESEND_S, 60.0, now_s) for now_s in (1.0, 2.9, 3.0)]
    assert due == [False, False, True]
    assert not is_sent_now(CommandState.DELIVERED, None, 60.0, 5.0)


def test_only_what_may_still_be_answered_expires() -> None:
    assert {state for state in CommandState if is_overdue(state, 1.0, 1.0)} == set(LIVE)
    assert not is_overdue(CommandState.QUEUED, 1.1, 1.0)


# --- what makes it void ------------------------------------------------------------------

VIEW, INSTALL = Sent("deliver_view", 4, 1), Sent("deliver_install", 4, 1)
START = Sent("start_ranks", 4, 2, 1, 3)


@pytest.mark.parametrize(
    ("old", "new", "void"),
    [
        (VIEW, Sent("deliver_view", 5, 1), True),
        (INSTALL, Sent("deliver_view", 5, 1), True),
        (INSTALL, Sent("deliver_install", 5, 1), True),
        (VIEW, Sent("deliver_install", 5, 1), False),
        (VIEW, Sent("deliver_view", 4, 1), False),
        (VIEW, Sent("deliver_view", 3, 1), False),
        (START, Sent("deliver_view", 9, 2), False),
        (START, Sent("stop_ranks", 4, 2, 1, 3), True),
        (START, Sent("stop_ranks", 9, 2), True),
        (START, Sent("stop_ranks", 9, 1), False),
        (START, Sent("stop_ranks", 9, 3), False),
        (START, Sent("stop_ranks", 9, 2, 0, 3), False),
        (START, Sent("stop_ranks", 9, 2, 1, 2), False),
        (START, Sent("stop_ranks", 9, 2, 1, 4), False),
        (Sent("stop_ranks", 3, 2, 1, 3), START, False),
        (Sent("stop_ranks", 3, 2, 1, 3), Sent("stop_ranks", 4, 2, 1, 3), False),
    ],
)
def test_what_makes_what_void(old: Sent, new: Sent, void: bool) -> None:
    assert is_void(old, new) is void


def test_nothing_older_makes_a_newer_view_or_install_void() -> None:
    epochs = range(1, 4)
    for old, new in itertools.product(VOIDED["deliver_view"], VOIDED["deliver_view"]):
        for mine, theirs in itertools.product(epochs, epochs):
            assert not is_void(Sent(old, mine, 1), Sent(new, theirs, 1)) or mine < theirs


def test_a_stop_is_never_void_and_nothing_else_is_but_what_can_be_told_apart() -> None:
    assert "stop_ranks" not in {kind for kinds in VOIDED.values() for kind in kinds}
    stop = StopRanks(job_id="j", attempt=2, replica=1, incarnation=3, grace_s=0.0, reason="r")
    assert sent(stop, epoch=7) == Sent("stop_ranks", 7, 2, 1, 3)
    save: Body = RequestSave(job_id="j", attempt=2, save_kind="scheduled", reason="r")
    assert sent(save, epoch=7) is None
