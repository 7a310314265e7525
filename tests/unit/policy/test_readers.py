"""Who reads a checkpoint back, as a pure choice."""

import pytest

from controlplane.policy.readers import (
    MAX_ASKED,
    Ask,
    Here,
    Holder,
    Wait,
    is_believed,
    is_silent,
    is_worth_another_round,
    next_reader,
)


def holder(number: int, **changes: bool) -> Holder:
    return Holder(node_id=f"node_{number}", **({"connected": True} | changes))


def test_the_first_that_can_is_asked_then_the_next_then_this_machine() -> None:
    nodes = [holder(1, connected=False), holder(2, able=False), holder(3), holder(4)]
    assert next_reader(nodes) == Ask("node_3")
    nodes[2] = holder(3, asked=True, told=True)
    assert next_reader(nodes) == Ask("node_4")
    nodes[3] = holder(4, asked=True, told=True)
    assert next_reader(nodes) == Here()
    assert next_reader([]) == Here()


def test_a_busy_one_is_waited_for_only_where_nobody_is_free() -> None:
    assert next_reader([holder(1, busy=True), holder(2)]) == Ask("node_2")
    assert next_reader([holder(1, busy=True), holder(2, asked=True)]) == Wait()


@pytest.mark.parametrize("nodes", [1_000, 8_000])
def test_of_a_large_job_a_few_are_asked_each_once(nodes: int) -> None:
    known = {f"node_{number}": holder(number) for number in range(nodes)}
    asked = []
    while isinstance(step := next_reader(known.values()), Ask):
        asked.append(step.node_id)
        known[step.node_id] = Holder(node_id=step.node_id, connected=True, asked=True, told=True)
    assert step == Here()
    assert len(asked) == len(set(asked)) == MAX_ASKED


def test_another_round_is_worth_it_where_somebody_could_not_say() -> None:
    told = holder(1, asked=True, told=True)
    assert not is_worth_another_round([told])
    assert not is_worth_another_round([told, holder(2)]), "it was there, and enough others were asked"
    assert is_worth_another_round([told, holder(2, connected=False)])
    assert is_worth_another_round([holder(1, asked=True)]), "it died over it"


def test_what_is_missing_counts_from_whoever_wrote_it() -> None:
    assert is_believed(ok=True, absent=False, wrote_it=False)
    assert is_believed(ok=False, absent=False, wrote_it=False)
    assert is_believed(ok=False, absent=True, wrote_it=True)
    assert not is_believed(ok=False, absent=True, wrote_it=False)
    assert not is_believed(ok=None, absent=False, wrote_it=True)


def test_silence_is_no_answer_after_a_while() -> None:
    assert not is_silent(heard_s=90.0)
    assert is_silent(heard_s=90.5)
