"""What incidents of several jobs have in common: a failure domain, a node, the storage; else nothing."""

from controlplane.policy.shared_causes import JobIncident, Shared, shared

SEGMENTS = {"n1": "rack-1", "n2": "rack-1", "n3": "rack-2", "n4": ""}
NAMES = {"n1": "node-1", "n2": "node-2", "n3": "node-3"}


def of(job: str, at_s: float = 0.0, **fields) -> JobIncident:
    return JobIncident(id=f"inc_{job}_{at_s:.0f}", job_id=job, opened_s=at_s, **fields)


def away(job: str, *nodes: str, at_s: float = 0.0) -> JobIncident:
    return of(job, at_s, silent=nodes, named=nodes)


def found(*incidents: JobIncident) -> tuple[Shared, ...]:
    return shared(incidents, SEGMENTS, NAMES)


def test_a_rack_that_goes_is_one_cause_of_all_its_jobs():
    (one,) = found(away("a", "n1"), away("b", "n2", at_s=5.0))
    assert (one.kind, one.subject, one.nodes) == ("segment", "rack-1", ("n1", "n2"))
    assert one.title == "2 nodes of rack-1 are not heard: 2 jobs"
    assert one.parts == ("inc_a_0", "inc_b_5")


def test_a_node_that_held_ranks_of_two_jobs_is_one_cause():
    (one,) = found(of("a", named=("n3",)), of("b", 2.0, named=("n3",)))
    assert (one.kind, one.subject, one.title) == ("node", "n3", "Node-3 failed under 2 jobs")
    (same,) = found(away("a", "n1"), away("b", "n1"))
    assert same.kind == "node", "one node is no rack"


def test_a_storage_that_stalls_under_several_jobs_is_one_cause_however_late_the_second_noticed():
    (one,) = found(of("a", saving=True), of("b", 300.0, saving=True))
    assert (one.kind, one.title) == ("storage", "2 jobs stand still in a save: their storage")


def test_what_says_nothing_of_a_common_cause_is_a_fault_of_its_own():
    assert found(away("a", "n1"), away("b", "n3")) == (), "two racks"
    assert found(away("a", "n1"), away("b", "n2", at_s=40.0)) == (), "not at once"
    assert found(of("a", named=("n1",)), of("a", 1.0, named=("n1",))) == (), "one job"
    assert found(of("a"), of("b")) == (), "nothing is named"
    assert found(away("a", "n4"), away("b", "n5")) == (), "no failure domain is named"
    assert found(of("a", saving=True), of("b")) == ()


def test_an_incident_has_one_cause_and_the_widest_is_asked_first():
    a, b, c = away("a", "n1", "n2"), away("b", "n1"), of("c", 1.0, named=("n1",))
    (one,) = found(a, b, c)
    assert one.kind == "segment" and one.parts == ("inc_a_0", "inc_b_0")


def test_two_nodes_that_went_under_the_same_two_jobs_are_one_incident_and_not_two():
    (one,) = found(away("a", "n4", "n5"), away("b", "n4", "n5", at_s=1.0))
    assert (one.kind, one.subject, one.parts) == ("node", "n4", ("inc_a_0", "inc_b_1"))
    two = found(away("a", "n4", "n5"), away("b", "n4"), away("c", "n5"), away("d", "n5"))
    assert [each.parts for each in two] == [("inc_a_0", "inc_b_0"), ("inc_c_0", "inc_d_0")]
