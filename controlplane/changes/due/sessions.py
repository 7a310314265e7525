"""Connections whose web process is gone: nobody there will notice the socket's end."""

from collections.abc import Iterator

from controlplane.changes.due.kinds import CloseSession
from controlplane.changes.due.rows import SessionRows

WEB_STALE_S = 15.0
"""A web process that has said nothing for so long holds no socket any more."""


def close_dead(rows: SessionRows) -> Iterator[CloseSession]:
    """One that was opened within `WEB_STALE_S` may be of a process whose first beat is still to come."""
    living = rows.living_webs()
    for session in rows.sessions(opened_before_s=rows.now_s - WEB_STALE_S):
        if session.web not in living:
            yield CloseSession(session.node_id, session.id)
