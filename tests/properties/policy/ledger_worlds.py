"""Worlds for the ledger: nodes that come and go, jobs that hold their devices, commits with stalls and restarts."""

from hypothesis import strategies as st

from controlplane.policy.ledger.facts import Cause, Facts, Hold, JobFacts, Reserved, Role, Run, Standing, Turn
from controlplane.policy.ledger.runs import Gone, Grown, grow, lost_of
from controlplane.policy.pace import Commit, Pace, count
from controlplane.policy.spent import KINDS, Spent, begin
from controlplane.policy.spent import count as count_spent

UNTIL_S = 400
CAUSES = st.sampled_from([Cause(), Cause("incident", "inc_1"), Cause("person", "ada"), Cause("decision", "dec_1")])


class Counted:
    """A job's commits as ingest counts them: `policy.spent`, and the runs that its gaps become."""

    def __init__(self, began_s: float) -> None:
        self.pace, self.spent = Pace(), begin(began_s)
        self.runs: list[Grown] = []

    def commit(self, commit: Commit, *, resume_step: int = 0) -> None:
        spent: Spent = self.spent
        same = commit.attempt == spent.attempt
        since = spent.step + 1 if same else resume_step
        since_epoch = spent.epoch
        if not same:
            self.take_back(commit.attempt, resume_step)
        count(self.pace, commit)
        gap = count_spent(spent, commit, self.pace)
        if gap is not None:
            gone = Gone(
                gap=gap, attempt=commit.attempt, since_epoch=since_epoch, epoch=commit.epoch, since=since,
                done=commit.step + 1,
            )  # fmt: skip
            new = grow(self.runs[-1] if self.runs else None, gone)
            self.runs += [new] if new else []

    def take_back(self, attempt: int, resume_step: int) -> None:
        for run in self.runs:
            run.lost = max(run.lost, lost_of(run, attempt=attempt, resume_step=resume_step))

    def facts(self, job: str) -> tuple[Run, ...]:
        return tuple(
            Run(job=job, from_s=run.from_s, until_s=run.until_s, kind=run.kind, lost_steps=run.lost,
                steps=run.done - run.since - run.lost, saved_s=run.saved_s)
            for run in self.runs
        )  # fmt: skip


@st.composite
def runs(draw: st.DrawFn, job: str) -> tuple[Run, ...]:
    """Of one job, one after the other, with holes, and some that overlap (the clock was set back)."""
    at, found = draw(st.integers(0, 50)), list[Run]()
    for _ in range(draw(st.integers(0, 6))):
        at = max(0, at + draw(st.sampled_from([0, 0, 0, 7, -60])))
        until = at + draw(st.integers(1, 90))
        found.append(
            Run(
                job=job, from_s=at, until_s=until, kind=draw(st.sampled_from(KINDS)), steps=draw(st.integers(0, 20)),
                lost_steps=draw(st.integers(0, 3)), saved_s=draw(st.sampled_from([0.0, 2.5])), cause=draw(CAUSES),
                lost_cause=draw(CAUSES), preempted=draw(st.booleans()), restated=draw(st.booleans()),
            )
        )  # fmt: skip
        at = until
    return tuple(found)


@st.composite
def jobs(draw: st.DrawFn, job: str) -> JobFacts:
    began = draw(st.one_of(st.none(), st.integers(0, 100)))
    finished = draw(st.one_of(st.none(), st.integers(100, UNTIL_S))) if began is not None else None
    return JobFacts(
        id=job, project="default", gpus=draw(st.integers(1, 8)), step_s=draw(st.sampled_from([None, 1.0, 3.0])),
        created_s=draw(st.integers(0, 50)), began_s=began, finished_s=finished, training=draw(st.booleans()),
        tail=draw(CAUSES), yields=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def standings(draw: st.DrawFn, node: str) -> tuple[Standing, ...]:
    """One after the other, until for ever."""
    at, found = draw(st.integers(0, 50)), list[Standing]()
    for _ in range(draw(st.integers(1, 5))):
        until = at + draw(st.integers(1, 120))
        sorts = {name: draw(st.integers(0, 4)) for name in ("down", "cordoned", "spare", "unseen")}
        devices = draw(st.integers(0, 8))
        found.append(Standing(node=node, from_s=at, until_s=until, devices=devices, cause=draw(CAUSES), **sorts))
        at = until
    return (*found[:-1], Standing(node=node, from_s=found[-1].from_s, until_s=None, devices=found[-1].devices))


@st.composite
def kept(draw: st.DrawFn, nodes: list[str]) -> Reserved:
    """A while in which a node is reserved; some overlap."""
    from_s = draw(st.integers(0, UNTIL_S))
    until_s = from_s + draw(st.integers(0, 150))
    return Reserved(draw(st.sampled_from(nodes)), from_s, until_s, draw(st.sampled_from(["rsv_1", "rsv_2"])))


@st.composite
def worlds(draw: st.DrawFn) -> Facts:
    """Also such as no fleet has seen: holds beyond the devices that are known, jobs that nobody knows."""
    nodes, names = ["node-a", "node-b"], ["job_1", "job_2"]
    holds, turns = list[Hold](), dict[int, tuple[Turn, ...]]()
    for replica in range(draw(st.integers(0, 5))):
        from_s = draw(st.integers(0, UNTIL_S))
        until = draw(st.one_of(st.none(), st.integers(from_s, UNTIL_S + 50)))
        holds.append(
            Hold(job=draw(st.sampled_from(names)), node=draw(st.sampled_from(nodes)), replica=replica, from_s=from_s,
                 until_s=until, devices=draw(st.integers(1, 4)))
        )  # fmt: skip
        moments = st.tuples(st.integers(0, UNTIL_S), st.sampled_from(Role))
        turns[replica] = tuple(Turn(at, role) for at, role in draw(st.lists(moments, max_size=4)))
    return Facts(
        judged_s=draw(st.integers(UNTIL_S - 50, UNTIL_S)),
        jobs=tuple(draw(jobs(name)) for name in names if draw(st.integers(0, 4))),
        runs=tuple(run for name in names for run in draw(runs(name))),
        holds=tuple(holds),
        turns=turns,
        standings=tuple(each for node in nodes for each in draw(standings(node))),
        reserved=tuple(draw(st.lists(kept(nodes), max_size=4))),
    )
