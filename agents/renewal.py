"""A new journal in the middle of a life: what the server has and what was kept do not meet.

Called by `agents.runtime` for the core's `RenewJournal`. Ranks are not touched; events that were
not acknowledged are told again under the new journal.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from agents.core.events import JournalRenewed
from agents.core.restore import snapshot
from agents.link.journal import Journal
from agents.log import note

if TYPE_CHECKING:
    from agents.runtime import Agent

_SYNC_WAIT_S = 0.05


def renew_journal(agent: "Agent", journal: Journal, is_syncing: Callable[[], bool]) -> None:
    """Give the core a fresh id, write the journal anew, connect again. If it cannot be written the
    old one is met again at the next start, and the server knows where that one ended."""
    was_up = agent.state.link.up
    agent.dispatch(JournalRenewed(now_s=time.monotonic(), journal_id=fresh_journal_id()))
    loop = asyncio.get_running_loop()

    def write() -> None:
        if is_syncing():
            loop.call_later(_SYNC_WAIT_S, write)
            return
        journal.compact(snapshot(agent.state))
        note("a new journal begins", journal_id=agent.state.journal_id, error=journal.error)

    # Not from within the dispatch that asked for it: the core has yet to take the new id.
    loop.call_soon(write)
    if was_up and agent.link is not None:
        agent.link.drop(0.0)


def fresh_journal_id() -> str:
    """Never given before."""
    return f"jrn_{secrets.token_hex(8)}"
