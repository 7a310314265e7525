"""I7: whatever comes, in whatever order, no cap is exceeded, and what needs no more evidence is never held."""

from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.config import PolicyConfig
from controlplane.policy.disruption import CAPS, CAPS_OF_SEGMENT, Allowance, exceeds
from controlplane.policy.disruption_counts import Act, ActKind, DisruptionCounts
from controlplane.policy.fleet import FleetSnapshot

NODES = {"n1": "a", "n2": "a", "n3": "b", "n4": ""}
CONFIG = PolicyConfig(
    max_acts=100, max_evictions=4, max_restarts=2, max_cordons=3, max_emergency_saves=2, max_evictions_of_segment=3,
    max_cordons_of_segment=2,
)  # fmt: skip
WANTED = st.lists(
    st.tuples(st.sampled_from(list(ActKind)), st.sampled_from(sorted(NODES)), st.booleans()), min_size=1, max_size=40
)


def act(kind: ActKind, node_id: str, proved: bool) -> Act:
    return Act(kind=kind, segments=(NODES[node_id],) if NODES[node_id] else (), proved=proved)


def facts(done: list[Act]) -> DisruptionCounts:
    fleet: dict[str, int] = {}
    parts: dict[str, dict[str, int]] = {}
    for act in done:
        fleet[act.kind] = fleet.get(act.kind, 0) + 1
        for name in act.segments:
            own = parts.setdefault(name, {})
            own[act.kind] = own.get(act.kind, 0) + 1
    return DisruptionCounts(acts=fleet, of_segments=parts)


def within(done: list[Act]) -> bool:
    """Acts without proof, in all and in each failure domain."""
    bound = facts([act for act in done if not act.proved])
    fleet = all(bound.acts.get(kind, 0) <= getattr(CONFIG, name) for kind, name in CAPS.items())
    return fleet and all(
        own.get(kind, 0) <= getattr(CONFIG, name)
        for own in bound.of_segments.values()
        for kind, name in CAPS_OF_SEGMENT.items()
    )


@given(wanted=WANTED, passes=st.integers(1, 5))
def test_passes_that_ask_before_they_act_exceed_no_cap(wanted, passes):
    done: list[Act] = []
    for first in range(passes):
        left = Allowance(FleetSnapshot(now_s=0.0, segments=NODES, disruption=facts(done)), CONFIG)
        for kind, node_id, proved in wanted[first::passes]:
            took = left.takes(kind, (node_id,), proved=proved)
            assert took or not proved, "what is proved is never held"
            done += [act(kind, node_id, proved)] if took else []
    assert within(done)


@given(wanted=WANTED)
def test_passes_that_decided_on_the_same_rows_exceed_no_cap_as_each_counts_again_under_the_lock(wanted):
    done: list[Act] = []
    for kind, node_id, proved in wanted:
        one = act(kind, node_id, proved)
        why = exceeds((one,), facts(done), CONFIG)
        assert not (why and proved)
        done += [] if why else [one]
    assert within(done)
