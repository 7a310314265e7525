"""Sessions of many nodes, opened and closed together: as many statements for a thousand as for one.

What is here changes nothing of a node but its session, and what of it each session says again: which agent, which
revision, which segment; of a first session its boot and journal too. Another boot or journal than before, and devices
that are not as they were, are `fleet.services`'. Callers of `opened` hold the nodes' rows.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from controlplane.fleet import flapping
from controlplane.fleet.models import Node
from controlplane.protocol.frames import PROTOCOL_MAX
from controlplane.runtime import bulk, events
from controlplane.runtime.clock import now
from controlplane.runtime.locks import lock_rows
from controlplane.runtime.pieces import batched
from controlplane.runtime.prepared import MOST, TEXT, Prepared, Several

_NEWEST: Prepared[tuple[str, str]] = Prepared(
    lambda nodes: Node.objects.filter(pk__in=nodes, connected=True).values_list("id", "session_id"),
    nodes=Several(TEXT),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a node's hello says of its session; `newest` is the revision that its agent speaks at most."""

    session_id: str
    boot_id: str
    journal_id: str
    version: str
    newest: int
    segment: str


def segment_of(node: Node, said: str) -> str:
    """Where it is: what its join token has bound it to, else what its agent says."""
    return (node.pool or said)[:63]


def is_news(node: Node, boot_id: str, journal_id: str, version: str, segment: str) -> bool:
    """Whether it is an event that it is connected: not of one that never was lost and is what it was, as when its
    web process has ended and another has its agent before anybody noticed."""
    same = (node.boot_id, node.journal_id, node.agent_version, node.segment)
    return not node.connected or same != (boot_id[:64], journal_id[:64], version[:40], segment_of(node, segment))


def opened(nodes: Collection[Node], said: Mapping[str, Said]) -> None:
    """Each of these has a new session, its first or of the boot and journal that it had (`said`, by id)."""
    rows, news = [], {}
    for node in nodes:
        mine = said[node.id]
        segment, version = segment_of(node, mine.segment), mine.version[:40]
        boot_id, journal_id = mine.boot_id[:64], mine.journal_id[:64]
        revision = min(PROTOCOL_MAX, mine.newest)
        rows.append((node.id, mine.session_id, boot_id, journal_id, version, segment, revision))
        if is_news(node, boot_id, journal_id, version, segment):
            news[node] = f"Node {node.name} is connected."
    names = ("session_id", "boot_id", "journal_id", "agent_version", "segment", "revision")
    bulk.update(Node, {"connected": True, "connected_at": now()}, names, rows)
    flapping.publish_all(news, "node.connected")


def close_session(node_id: str, session_id: str) -> bool:
    """The socket closed. False when a newer session had replaced it."""
    return bool(close_sessions({node_id: session_id}))


def close_sessions(ended: Mapping[str, str]) -> set[str]:
    """These sessions (by node) are over; the nodes of which that was the newest. Of the others no row is touched."""
    found = set()
    for some in batched(ended, MOST):
        newest = [node_id for node_id, session_id in _NEWEST(nodes=some) if session_id == ended[node_id]]
        if newest:
            found |= _close(newest, ended)
    return found


def _close(node_ids: Collection[str], ended: Mapping[str, str]) -> set[str]:
    with events.unit_of_work():
        nodes = lock_rows(Node, node_ids)
        mine = [node for node in nodes.values() if node.connected and node.session_id == ended[node.id]]
        ids = [node.id for node in mine]
        Node.objects.filter(pk__in=ids).update(connected=False, disconnected_at=now())
        flapping.publish_all({node: f"Node {node.name} lost its connection." for node in mine}, "node.disconnected")
    return set(ids)
