"""Recoveries of a job that follow each other quickly are judged by one undisturbed run."""

from controlplane.recovery.sharing import StepRange, together


def wish(name: str, from_step: int, until_step: int) -> StepRange:
    return StepRange(incident_id=name, from_step=from_step, until_step=until_step)


def names(*ranges: StepRange, max_steps: int = 300) -> list[str]:
    return [each.incident_id for each in together(ranges, max_steps=max_steps)]


def test_a_run_from_before_the_first_judges_all_that_end_within_its_reach() -> None:
    assert names(wish("c", 80, 160), wish("a", 20, 90), wish("b", 20, 120), wish("far", 300, 321)) == ["a", "b", "c"]


def test_the_first_has_its_run_however_long_it_is() -> None:
    assert names(wish("slow", 0, 5000), wish("next", 40, 310)) == ["slow"]
    assert names(wish("alone", 7, 8)) == ["alone"]
    assert names() == []
