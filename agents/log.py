"""The agent's own log: one JSON object a line on stderr, a constant phrase and fields. What a
rank or the server put into a field cannot end the line, steer a terminal or stop the agent."""

import sys
import time

import msgspec

from controlplane.protocol.plain import INT_MAX, INT_MIN, shown


def note(event: str, **fields: object) -> None:
    """Write one line; a log that cannot be written stops nothing."""
    record: dict[str, object] = {"time": round(time.time(), 3), "event": event}
    record |= {key: _plain(value) for key, value in fields.items()}
    try:
        sys.stderr.buffer.write(msgspec.json.encode(record) + b"\n")
        sys.stderr.buffer.flush()
    except OSError:
        return


def _plain(value: object) -> object:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if (isinstance(value, int) and INT_MIN <= value <= INT_MAX) or isinstance(value, float):
        return value
    return shown(str(value))
