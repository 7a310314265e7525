"""Server-sent events, sans I/O: lines in, events out, and where to go on after a break."""

import msgspec

from controlplane.protocol.rest import Event

RECONNECT_S = 1.0
READ_TIMEOUT_S = 40.0  # the server sends a comment every 15 s


class Reader:
    """Feed it lines; `since` is the newest sequence number seen, to resume from."""

    def __init__(self, since: int) -> None:
        self.since = since
        self._kind = ""
        self._data: list[str] = []

    def feed(self, line: str) -> Event | None:
        """An event when `line` completes one; a resync moves `since` and is passed on as
        an event of kind "resync" without a sentence."""
        if line:
            name, _, value = line.partition(":")
            if name == "event":
                self._kind = value.strip()
            elif name == "data":
                self._data.append(value.removeprefix(" "))
            return None
        kind, data = self._kind, "\n".join(self._data)
        self._kind, self._data = "", []
        if not data:
            return None
        if kind == "resync":
            seq = int(msgspec.json.decode(data)["seq"])
            self.since = seq
            return Event(seq=seq, at="", kind="resync", sentence="")
        event = msgspec.json.decode(data, type=Event)
        self.since = max(self.since, event.seq)
        return event
