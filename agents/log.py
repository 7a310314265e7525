"""The agent's own log: one JSON object a line on stderr, a constant phrase and fields."""

import sys
import time

import msgspec


def note(event: str, **fields: object) -> None:
    """Write one line; a log that cannot be written stops nothing."""
    record: dict[str, object] = {"time": round(time.time(), 3), "event": event}
    for key, value in fields.items():
        record[key] = value if isinstance(value, int | float | list) else str(value)
    try:
        sys.stderr.buffer.write(msgspec.json.encode(record) + b"\n")
        sys.stderr.buffer.flush()
    except OSError:
        return
