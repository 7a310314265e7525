"""What a hello tells the simulated server: the twin of `recovery.hello`."""

from controlplane.protocol.frames import PROTOCOL_MAX, AgentHello, Welcome
from controlplane.simulator.rows import NodeRow, ReplicaRow, Rows

FRAME_INTERVAL_S = 1.0


def greet(rows: Rows, row: NodeRow, hello: AgentHello) -> bool:
    """Another journal: of those that were started here, who is not listed is gone, as its exit will never be told.
    With the same one an exit is an event still to come. True when somebody must look."""
    if row.journal_id == hello.journal_id:
        return False
    alive = {(status.ref.replica, status.ref.incarnation, status.ref.rank) for status in hello.ranks}
    for replica in (*rows.replicas.values(), *rows.ghosts) if row.journal_id else ():
        _miss(replica, row.id, alive)
    row.journal_id, row.applied_seq = hello.journal_id, 0
    return True


def welcome(row: NodeRow) -> Welcome:
    """Its answer."""
    return Welcome(
        protocol=PROTOCOL_MAX,
        node_id=row.id,
        session_id=f"ses_{row.session}",
        acked_seq=row.applied_seq,
        frame_interval_s=FRAME_INTERVAL_S,
        sample_interval_s=FRAME_INTERVAL_S,
    )


def _miss(replica: ReplicaRow, node_id: str, alive: set[tuple[int, int, int]]) -> None:
    for place in replica.placements:
        listed = (replica.index, replica.incarnation, place.rank) in alive
        if place.node_id == node_id and place.rank in replica.started and not listed:
            replica.exited.add(place.rank)
    replica.stopped = len(replica.exited) == len(replica.placements)
