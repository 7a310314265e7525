"""What waits for time to pass is looked at when that time has passed."""

import pytest

from controlplane.policy.decide import decide

from .builders import CONFIG, NOW_S, job, running, signal


def test_a_silent_nodes_witness_is_looked_for_the_moment_it_can_be_there() -> None:
    """The others have waited long enough so long after the last step, and nothing rings then: the next
    look came a second after the one before, and the decision with it."""
    stood_still_s = 1.4
    silent = signal("node_silent", 1, node_id="n1", seen_s=NOW_S - 5.0)
    plan = decide(running(job=job(progressed_s=NOW_S - stood_still_s), signals=(silent,)), CONFIG)
    assert plan.decisions == ()
    assert plan.next_pass_s == pytest.approx(NOW_S - stood_still_s + CONFIG.witness_s)
