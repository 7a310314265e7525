"""No field of a job spec is decoration: what nothing acts on is refused, with the way out."""

import pytest

from controlplane.protocol.spec_lint import lint
from tests.unit.protocol.test_spec_lint import broken

REFUSED = (
    "/metadata/annotations", "/spec/resiliency/risk/window_samples",
)  # fmt: skip
"""Fields whose defaults alone are accepted."""


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/metadata/annotations", {"a": "b"}),
        ("/spec/resiliency/risk/window_samples", 30),
    ],
)
def test_a_field_that_would_change_nothing_is_refused_and_says_so(pointer: str, value: object) -> None:
    (fault,) = lint(broken((pointer, value))).faults
    assert fault.pointer == pointer and pointer in REFUSED
    assert "nothing" in fault.message and fault.fix


def test_their_defaults_may_be_written_out() -> None:
    document = broken(
        ("/spec/scheduling", {"priority": 900, "preemptible": False}),
        ("/metadata/annotations", {}),
        ("/metadata/labels", {"team": "nlp"}),
    )
    assert lint(document).faults == ()
