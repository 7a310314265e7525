"""Every state has a sentence that says what is expected next."""

import pytest

from controlplane.api.why import why
from controlplane.protocol.states import JobState


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_says_what_comes_next(state: JobState) -> None:
    sentence = why(state, "2 devices are missing", cancel_requested=False)
    assert sentence.startswith("2 devices are missing. ")
    assert sentence.endswith(".")
    assert why(state, "", cancel_requested=False) == why(state, " ", cancel_requested=False) != ""


def test_a_cancellation_is_told_until_the_job_has_ended() -> None:
    assert "cancellation" in why("running", "", cancel_requested=True)
    assert "cancellation" not in why("succeeded", "", cancel_requested=True)


@pytest.mark.parametrize("state", list(JobState))
def test_what_waits_for_a_person_is_no_promise_that_training_resumes(state: JobState) -> None:
    held = "Automation is stopped: 40 of 100 devices look bad at once."
    sentence = why(state, "", cancel_requested=False, held=held)
    under_way = state in (JobState.RUNNING, JobState.RECOVERING)
    assert (held in sentence, "No action needed" in sentence) == (under_way, False)
    assert sentence != ""
