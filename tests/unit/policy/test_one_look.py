"""A pass looks at each replica once, however many rules ask which have failed: 5 ms a decision (G14)."""

from collections import Counter

import msgspec

from controlplane.policy import failures
from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact
from tests.unit.policy.builders import CONFIG, signal
from tests.unit.policy.test_one_of_many import fleet


def test_each_replica_is_looked_at_once_a_pass_and_anew_in_the_next(monkeypatch):
    looks: Counter[int] = Counter()

    def counting(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> None:
        looks[replica.index] += 1

    monkeypatch.setattr(failures, "PROVED", (counting, *failures.PROVED))
    snapshot = fleet(8)
    decide(snapshot, CONFIG)
    assert looks == dict.fromkeys(range(8), 1)
    decide(msgspec.structs.replace(snapshot, now_s=snapshot.now_s + 1.0), CONFIG)
    assert looks == dict.fromkeys(range(8), 2)


def test_what_was_found_in_one_snapshot_is_never_told_of_another():
    whole = fleet(4)
    broken = fleet(4, signals=(signal("rank_exit", 1, replica=2, incarnation=1, rank=0, value=-9.0),))
    found = [[f.replica.index for f in failures.every_failure(each, CONFIG)] for each in (whole, broken, whole, broken)]
    assert found == [[], [2], [], [2]]
    other = msgspec.structs.replace(CONFIG, lease_s=99.0)
    assert [f.replica.index for f in failures.every_failure(broken, other)] == [2]
