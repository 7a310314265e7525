"""A hello to the simulated server's rows: the edge of `changes.handshake`."""

from collections import defaultdict
from collections.abc import Mapping

from controlplane.changes.handshake import Fenced, Greeting, greeted, greeting_of, is_quiet, learned
from controlplane.protocol.frames import PROTOCOL_MAX, AgentHello, RankStatus, Welcome
from controlplane.protocol.launch import RankRef
from controlplane.protocol.states import EndSource
from controlplane.simulator.rows import NodeRow
from controlplane.simulator.store import Store

FRAME_INTERVAL_S = 1.0


def greet(jobs: Mapping[str, Store], fleet: Store, row: NodeRow, said: AgentHello) -> None:
    """What it proves, of each job; `fleet`: the store for ranks of what is no job here. Events of another journal are
    counted from its first."""
    greeting = greeting_of(
        said, node_id=row.id, journal_id=row.journal_id, boot_id=row.boot_id, applied_seq=row.applied_seq
    )
    if not _is_quiet(jobs, row, said, greeting):
        _follow(jobs, fleet, said, greeting)
    if row.journal_id != said.journal_id:
        row.journal_id, row.applied_seq = said.journal_id, 0
    if row.boot_id != said.boot_id:
        row.ends.pop(EndSource.SPOT, None)
    row.boot_id = said.boot_id


def _is_quiet(jobs: Mapping[str, Store], row: NodeRow, said: AgentHello, greeting: Greeting) -> bool:
    fences = {}
    for seen in said.jobs:
        if seen.job_id in jobs:
            here = jobs[seen.job_id].standing()
            fences[seen.job_id] = Fenced(here.newest, here.epoch)
    held = {
        RankRef(job_id, rank.attempt, rank.replica, rank.incarnation, rank.rank): rank.fenced
        for job_id in {status.ref.job_id for status in said.ranks} & jobs.keys()
        for rank in jobs[job_id].held(row.id)
    }
    return is_quiet(said, greeting, fences, held)


def _follow(jobs: Mapping[str, Store], fleet: Store, said: AgentHello, greeting: Greeting) -> None:
    """What it proves, to rows."""
    for seen in said.jobs:
        if seen.job_id in jobs:
            store = jobs[seen.job_id]
            store.commit(learned(store, seen, greeting))
    listed: dict[str, list[RankStatus]] = defaultdict(list)
    for status in said.ranks:
        listed[status.ref.job_id].append(status)
    for job_id in sorted(listed.keys() | (jobs if greeting.renewed else {})):
        store = jobs.get(job_id, fleet)
        store.commit(greeted(store, listed[job_id], greeting))


def welcome(row: NodeRow) -> Welcome:
    """Its answer."""
    return Welcome(
        protocol=PROTOCOL_MAX,
        node_id=row.id,
        session_id=f"ses_{row.session}",
        acked_seq=row.applied_seq,
        frame_interval_s=FRAME_INTERVAL_S,
        sample_interval_s=FRAME_INTERVAL_S,
        demo=True,
    )
