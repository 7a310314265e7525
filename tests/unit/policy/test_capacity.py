"""What devices are in use for: each in one class, whatever its node and its job are."""

from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.queue.capacity import CLOSED, Condition, Share, by_segment, tally, total

CLASSES = ("in_use", "free", "reserved", "spare", "draining", "cordoned", "down")


def share(condition: Condition, *, devices: int = 8, in_use: int = 3, unfit: int = 1) -> Share:
    """One node of eight, on three of which a job trains and one of which is broken."""
    return Share(model="H100", segment="a", condition=condition, devices=devices, in_use=in_use, unfit=unfit)


def test_what_no_job_has_is_counted_by_what_its_node_is_for() -> None:
    names = {
        Condition.OPEN: "free",
        Condition.SPARE: "spare",
        Condition.RESERVED: "reserved",
        Condition.DRAINING: "draining",
        Condition.CORDONED: "cordoned",
    }
    for condition, name in names.items():
        found = tally(share(condition))
        assert (found.in_use, getattr(found, name), found.down) == (3, 4, 1), condition
    assert tally(share(Condition.DOWN)).down == 5


def test_a_device_of_a_job_stays_in_use_where_its_node_takes_no_work_and_is_said_to_leave() -> None:
    for condition in Condition:
        found = tally(share(condition))
        assert (found.in_use, found.leaving) == (3, 3 if condition in CLOSED else 0), condition


nodes = st.integers(min_value=0, max_value=16).flatmap(
    lambda devices: st.integers(min_value=0, max_value=devices).flatmap(
        lambda in_use: st.builds(
            Share,
            model=st.sampled_from(("A100", "H100")),
            segment=st.sampled_from(("", "a", "b")),
            condition=st.sampled_from(tuple(Condition)),
            devices=st.just(devices),
            in_use=st.just(in_use),
            unfit=st.integers(min_value=0, max_value=devices - in_use),
        )
    )
)


@given(st.lists(nodes, max_size=20))
def test_each_device_is_in_one_class_and_sums_of_segments_are_those_of_nodes(shares: list[Share]) -> None:
    found = by_segment(shares)
    for model, segments in found.items():
        whole = total(segments.values())
        of_model = [each for each in shares if each.model == model]
        assert whole.devices == sum(getattr(whole, name) for name in CLASSES) == sum(each.devices for each in of_model)
        assert whole.nodes == len(of_model) and whole.in_use == sum(each.in_use for each in of_model)
        assert set(segments) == {each.segment for each in of_model}
    assert list(found) == sorted({each.model for each in shares})
