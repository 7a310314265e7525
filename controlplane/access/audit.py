"""Appending to the audit log: who did what to what, from where, why, and what it changed.

Called by every service that writes for somebody, in that write's own transaction, so that there
is no change without its row and no row without its change. Never fails on what a caller sent:
texts are cut and made printable, secrets are masked, numbers are made ones that any database
gives back as they came.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from controlplane.access import chain
from controlplane.access.models import AuditEntry
from controlplane.protocol.plain import MASKED, shown, without_secrets
from controlplane.runtime.clock import now
from controlplane.runtime.requests import current

MAX_TEXT, MAX_REASON, MAX_ITEMS, MAX_DEPTH = 500, 2000, 50, 6
# Beyond it a float or an int does not come back from every database as it went in.
EXACT = 2**53
_SECRET_NAME = re.compile(r"(?i)(password|passwd|secret|credential|authorization|cookie|private_?key|api_?key|csrf)")
_SECRET_NAMES = frozenset({"token", "key", "env", "join_token", "session", "sessionid"})


def audit(
    actor: str,
    action: str,
    subject: str,
    *,
    reason: str = "",
    request_id: str = "",
    data: Mapping[str, Any] | None = None,
    decision_id: str = "",
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    origin: str = "",
) -> None:
    """Append one row. `origin`: the address it came from, and `request_id`: both taken from the
    request under way unless given. `before` and `after`: the columns a change of state touched."""
    request = current()
    row = AuditEntry(
        at=now(),
        actor=_line(actor, 120),
        action=_line(action, 80),
        subject=_line(subject, 120),
        reason=without_secrets(shown(reason))[:MAX_REASON],
        request_id=_line(request_id or request.request_id, 64),
        origin=_line(origin or request.address, 64),
        decision_id=_line(decision_id, 32),
        data=fit(dict(data or {})),
        before=None if before is None else fit(dict(before)),
        after=None if after is None else fit(dict(after)),
    )
    row.mac = chain.row_mac(row, chain.keys()[0])
    row.save(force_insert=True)


def fit(value: Any, name: str = "", depth: int = 0) -> Any:
    """JSON of bounded size without secrets, that every database returns unchanged."""
    if _is_secret(name) and value not in (None, "", {}, []):
        return sorted(map(str, value)) if name == "env" and isinstance(value, Mapping) else MASKED
    if isinstance(value, Mapping):
        if depth >= MAX_DEPTH:
            return f"[{len(value)} fields]"
        items = list(value.items())[:MAX_ITEMS]
        return {_line(str(key), 80): fit(item, str(key), depth + 1) for key, item in items}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else list(value)
        return f"[{len(items)} items]" if depth >= MAX_DEPTH else [fit(i, "", depth + 1) for i in items[:MAX_ITEMS]]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < EXACT else str(value)
    if isinstance(value, float):
        # + 0.0 makes 0.0 of -0.0, a difference that PostgreSQL does not keep.
        return value + 0.0 if math.isfinite(value) and abs(value) < EXACT else str(value)
    return _line(str(value), MAX_TEXT)


def _is_secret(name: str) -> bool:
    return name.lower() in _SECRET_NAMES or bool(_SECRET_NAME.search(name))


def _line(text: str, size: int) -> str:
    return without_secrets(shown(text, layout=False))[:size]
