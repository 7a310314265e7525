"""No state is decoration: each one is entered by what this whole suite does, through the one writer of states.

`conftest` notes every move while the tests of this folder run, and has this test run last. Where only a
part of them runs it says nothing.
"""

import pytest

from controlplane.policy.transitions import TABLES
from tests.integration.backend import conftest


def test_every_state_is_entered(request: pytest.FixtureRequest) -> None:
    left = {item.path for item in request.session.items}
    if not left >= conftest.FILES:
        pytest.skip("only a part of the suite runs")
    entered = conftest.ENTERED
    never = {
        machine: [str(state) for state in list(table)[1:] if (machine, str(state)) not in entered]
        for machine, table in TABLES.items()
    }
    assert {machine: states for machine, states in never.items() if states} == {}
