"""A hello to the simulated server's rows: the edge of `changes.handshake`."""

from controlplane.changes.handshake import greeted, greeting_of, learned
from controlplane.protocol.frames import PROTOCOL_MAX, AgentHello, Welcome
from controlplane.simulator.rows import NodeRow
from controlplane.simulator.store import Store

FRAME_INTERVAL_S = 1.0


def greet(store: Store, row: NodeRow, said: AgentHello) -> None:
    """What it proves. Events of another journal are counted from its first."""
    greeting = greeting_of(
        said, node_id=row.id, journal_id=row.journal_id, boot_id=row.boot_id, applied_seq=row.applied_seq
    )
    for seen in said.jobs:
        store.commit(learned(store, seen, greeting))
    store.commit(greeted(store, said.ranks, greeting))
    if row.journal_id != said.journal_id:
        row.journal_id, row.applied_seq = said.journal_id, 0
    row.boot_id = said.boot_id


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
