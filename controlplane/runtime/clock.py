"""Server time. Only the server's own times are ever compared with each other."""

from datetime import UTC, datetime, timedelta


def now() -> datetime:
    """Aware, UTC."""
    return datetime.now(UTC)


def now_s() -> float:
    """Unix seconds."""
    return now().timestamp()


def from_s(value: float) -> datetime:
    """Unix seconds to an aware datetime."""
    return datetime.fromtimestamp(value, UTC)


def ago(age_s: float) -> datetime:
    """The server's time `age_s` seconds ago; a negative age is a peer's mistake and counts as 0."""
    return now() - timedelta(seconds=max(0.0, age_s))


def after(seconds: float) -> datetime:
    """The server's time in `seconds`."""
    return now() + timedelta(seconds=seconds)


def iso(value: datetime | None) -> str | None:
    """ISO-8601 with microseconds, UTC, as every `*_at` field of the API."""
    return None if value is None else value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def age_s(value: datetime | None) -> float | None:
    """Seconds since `value`; None stays None."""
    return None if value is None else max(0.0, (now() - value).total_seconds())
