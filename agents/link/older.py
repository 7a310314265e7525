"""Events of kinds that an older server does not know.

Called by `link.client` for each frame, where server and agent differ. A server refuses a frame of which it does
not understand one event, and takes no event before it has the one before, so none can be left out: the first of
a kind in a session goes as "this node did not take it", which the server counts and tells people, and the others
as an answer to a command that nobody gave, which it passes over. What they said is lost to that server.
"""

from collections import Counter
from collections.abc import Callable

import msgspec

from controlplane.protocol.frames import PROTOCOL_MAX, AgentEvent, AgentFrame, CommandAnswer, InputRefused
from controlplane.protocol.revisions import newer_event

NOBODYS_COMMAND = "not-known-to-this-server"


class OlderServer:
    """`left_out`: how many events of each kind were not said as they are."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self._told: set[str] = set()
        self.left_out: Counter[str] = Counter()

    def begin(self) -> None:
        """A session: what was told in the last one may not have arrived."""
        self._told.clear()

    def fit(self, frame: AgentFrame, revision: int) -> AgentFrame:
        """The frame as a server of `revision` understands all its events."""
        if revision >= PROTOCOL_MAX or not any(newer_event(event.body, revision) for event in frame.events):
            return frame
        return msgspec.structs.replace(frame, events=tuple(self._event(event, revision) for event in frame.events))

    def _event(self, event: AgentEvent, revision: int) -> AgentEvent:
        kind = newer_event(event.body, revision)
        if not kind:
            return event
        if kind not in self.left_out:
            self._note("the server is older and does not know what this agent reports: left out", kind=kind)
        self.left_out[kind] += 1
        body: InputRefused | CommandAnswer = CommandAnswer(NOBODYS_COMMAND, "acknowledged")
        if kind not in self._told:
            self._told.add(kind)
            body = InputRefused(None, 1, f"this server is older than the agent and does not know {kind}: upgrade it")
        return msgspec.structs.replace(event, body=body)
