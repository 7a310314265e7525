"""Sealing: audit rows get their numbers and their links, in one chain for all processes.

Called by `recovery.sweep` about once a second, in the sentinel and in the worker's tick, and by
the audit commands. A row is appended by its own transaction without a lock; here, under a lock
that is held for milliseconds, committed rows are closed into the chain. Never changes content.

The head of the chain is written once a minute to the log ("audit anchor") and to a file of the
state directory: rows cut off the end of the table are missed by nobody else.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db import connection, transaction
from django.db.models import QuerySet

from controlplane.access import chain
from controlplane.access.models import AuditAnchor, AuditEntry
from controlplane.access.reading import LOOK, links, pruned
from controlplane.runtime.clock import iso, now
from controlplane.runtime.logs import get

LOCK_KEY = 0x486F6C6461756469
BATCH = 500
# Honest numbers never come near it; a row or an anchor beyond it counts only when one of our keys linked it.
ROOM = 2**53
ANCHOR_EVERY_S = 60.0
ANCHOR_FILE = "audit-anchor.json"
_log = get(__name__)


@dataclass(frozen=True, slots=True)
class Anchor:
    """The chain had a row `seq` with this hash."""

    seq: int
    hash: str


def unsealed() -> QuerySet[AuditEntry]:
    """Committed rows that are not yet in the chain."""
    return AuditEntry.raw.filter(seq=None)


def head() -> Anchor:
    """The newest sealed row; where rows were pruned and none followed, the newest pruned one. It is
    taken as it is, because a process of an earlier secret seals on where one of a newer did; what
    was forged there is told by `verification`. Beyond ROOM, where a forged number would leave none
    for the next row, only what a key of ours closed counts."""
    row = _newest_row()
    return max(row, _newest_pruned(alone=row.seq == 0), key=lambda anchor: anchor.seq)


def _newest_row() -> Anchor:
    keys = chain.keys()
    far = AuditEntry.raw.filter(seq__gte=ROOM)
    for row in _newest(far) if far.exists() else ():
        if type(row.seq) is int and any(chain.link(row, key) == row.hash for key in keys):
            return Anchor(row.seq, row.hash)
    for row in _newest(AuditEntry.raw.filter(seq__gt=0, seq__lt=ROOM)):
        if type(row.seq) is int:
            return Anchor(row.seq, str(row.hash))
    return Anchor(0, chain.GENESIS)


def _newest(rows: QuerySet[AuditEntry]) -> Iterator[AuditEntry]:
    """The newest, which is nearly always the one that is looked for; then some more."""
    ids = rows.order_by("-seq").values_list("id", flat=True)
    yield from links(ids[:1])
    yield from links(ids[1:LOOK])


def _newest_pruned(*, alone: bool) -> Anchor:
    """`alone`: there is no sealed row to go on from, so it is taken as it is, too."""
    keys = chain.keys()
    for seq, digest, mac in pruned():
        if (alone and seq < ROOM) or any(chain.anchor_mac(seq, digest, key) == mac for key in keys):
            return Anchor(seq, digest)
    return Anchor(0, chain.GENESIS)


def seal(*, at_most: int = BATCH, wait: bool = False) -> int:
    """Close up to `at_most` rows into the chain, the oldest id first; returns how many. Where
    another process is at it: 0 at once, or with `wait` after it is done. Forged rows are closed in
    like all others, each under its own digest, which `verification` finds to be none of ours."""
    if not unsealed().exists():
        return 0
    with transaction.atomic():
        if not _alone(wait):
            return 0
        rows = links(list(unsealed().order_by("id").values_list("id", flat=True)[:at_most]))
        newest = head()
        chain.close(rows, (newest.seq, newest.hash), chain.keys()[0], numbers=_free(newest.seq, len(rows)))
        AuditEntry.raw.bulk_update(rows, ["seq", "prev_hash", "hash"], batch_size=100)
    return len(rows)


def _free(after: int, wanted: int) -> list[int]:
    """The next numbers that no row has."""
    numbers: list[int] = []
    while len(numbers) < wanted:
        window = range(after + 1, after + 1 + wanted)
        taken = set(AuditEntry.raw.filter(seq__gte=window.start, seq__lt=window.stop).values_list("seq", flat=True))
        numbers += [number for number in window if number not in taken]
        after = window.stop - 1
    return numbers[:wanted]


def seal_all() -> int:
    """Close every committed row into the chain; returns how many."""
    total = 0
    while sealed := seal(wait=True):
        total += sealed
    return total


def _alone(wait: bool) -> bool:
    """One sealer at a time, until commit. SQLite lets one writer in anyway (BEGIN IMMEDIATE)."""
    if connection.vendor != "postgresql":
        return True
    with connection.cursor() as cursor:
        if wait:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK_KEY])
            return True
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK_KEY])
        return bool(cursor.fetchone()[0])


class Sweeper:
    """What one process does about the chain each second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._anchored_at: float | None = None
        self._anchored_seq = 0

    def sweep(self) -> None:
        """Seal what is there; tell the head if it moved and was not told for a while."""
        seal()
        moment = time.monotonic()
        with self._lock:
            if self._anchored_at is not None and moment - self._anchored_at < ANCHOR_EVERY_S:
                return
            self._anchored_at = moment
            newest = head()
            if newest.seq == self._anchored_seq:
                return
            self._anchored_seq = newest.seq
        tell(newest)


def tell(newest: Anchor) -> None:
    """Log the head and keep it in the state directory, unless what is kept there is no longer in
    the chain: then rows were cut off, which is an error to look into (docs/access.md)."""
    kept = read_anchor(anchor_path())
    if kept is not None and not _in_chain(kept):
        _log.error("audit log was cut short: its kept head is gone", seq=newest.seq, anchor_seq=kept.seq)
        return
    _log.info("audit anchor", seq=newest.seq, hash=newest.hash)
    try:
        _keep(newest, anchor_path())
    except OSError as error:
        # The log has it; sealing and every other deadline go on.
        _log.warning("the audit anchor could not be kept", path=str(anchor_path()), error=str(error))


def _keep(newest: Anchor, path: Path) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps({"seq": newest.seq, "hash": newest.hash, "at": iso(now())}) + "\n")
    temporary.replace(path)


def _in_chain(anchor: Anchor) -> bool:
    digest = AuditEntry.raw.filter(seq=anchor.seq).values_list("hash", flat=True).first()
    if digest is not None:
        return digest == anchor.hash
    return AuditAnchor.objects.filter(seq__gte=anchor.seq).exists()


def anchor_path() -> Path:
    """Where this machine keeps the head."""
    return Path(settings.STATE_DIR) / ANCHOR_FILE


def read_anchor(path: Path) -> Anchor | None:
    """The kept head; None where there is none."""
    try:
        kept = json.loads(path.read_text())
        return Anchor(int(kept["seq"]), str(kept["hash"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


sweeper = Sweeper()
