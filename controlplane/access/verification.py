"""Is the audit log whole? Walks the chain once, in order, and names the first row that is not
as it was sealed. Called by `manage.py verify_audit` and `prune_audit`; reads only.

    edited      the content is not what its keyed digest says, or was never written by Holdfast
    misplaced   the row is whole but its number or its link to the row before is not, or its number
                is none that the chain can have: below the first one, or no whole number at all
    late        the row was written a day before one that it follows: held back, put back, or by a
                machine whose clock was that wrong
    missing     rows between two others are gone, or a forged row made the numbers leap
    cut off     the chain ends before an anchor, or another row stands in its place
    repeated    a row was copied: an act that happened once is told twice
    waiting     rows wait to be sealed for longer than sealing takes: nobody seals
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Count, Max, Min

from controlplane.access import chain
from controlplane.access.models import AuditEntry
from controlplane.access.reading import pruned, rows, sound
from controlplane.access.sealing import Anchor, unsealed
from controlplane.runtime.clock import now

MAX_FAULTS = 20
MAX_UNSEALED_S = 60.0
LATE = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFault:
    """`row`: "seq 7 (id 12)" or where there is no row, the number at which one should be."""

    kind: str
    row: str
    detail: str


@dataclass(slots=True, kw_only=True)
class Verdict:
    """`rows` were read, from `first_seq` to the head. `faults`: the first MAX_FAULTS, in order of
    seq; `broken` counts all, `late` those of that kind, which a clock that was set back makes too.
    `unsealed_age_s`: of the oldest row that waits."""

    rows: int = 0
    first_seq: int = 1
    head: Anchor = field(default_factory=lambda: Anchor(0, chain.GENESIS))
    unsealed: int = 0
    unsealed_age_s: float = 0.0
    broken: int = 0
    late: int = 0
    faults: list[ChainFault] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Nothing was found."""
        return self.broken == 0

    def add(self, kind: str, row: str, detail: str) -> None:
        """Note a fault."""
        self.broken += 1
        self.late += kind == "late"
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(ChainFault(kind=kind, row=row, detail=detail))


def verify(anchors: Sequence[Anchor] = (), *, max_unsealed_s: float = MAX_UNSEALED_S) -> Verdict:
    """Read the whole chain in bounded memory. `anchors`: heads noted outside the database."""
    verdict, keys = Verdict(), Keys()
    base = _base(verdict, keys)
    verdict.first_seq = base.seq + 1
    verdict.head = base
    for row in rows(AuditEntry.raw.filter(seq__lte=base.seq).order_by("seq", "id")):
        verdict.add("misplaced", _name(row), f"the log begins at seq {base.seq + 1}: nothing may stand before it")
    walk = _Walk(verdict, keys, base, anchors)
    for row in rows(AuditEntry.raw.filter(seq__gt=base.seq).order_by("seq", "id")):
        walk.step(row)
    walk.end()
    for first, last in _repeated():
        names = {row.id: _name(row) for row in rows(AuditEntry.raw.filter(id__in=(first, last)))}
        verdict.add("repeated", names.get(last, f"id {last}"), f"the same row as {names.get(first, f'id {first}')}")
    _check_waiting(verdict, keys, max_unsealed_s)
    return verdict


class _Walk:
    """One way along the sealed rows, in the order of their numbers."""

    def __init__(self, verdict: Verdict, keys: "Keys", base: Anchor, anchors: Sequence[Anchor]) -> None:
        self._verdict, self._keys = verdict, keys
        self._wanted = {anchor.seq: anchor for anchor in anchors if anchor.seq > base.seq}
        self._expected, self._before = base.seq + 1, base.hash
        self._latest: datetime | None = None

    def step(self, row: AuditEntry) -> None:
        """The next row."""
        verdict, seq = self._verdict, row.seq
        verdict.rows += 1
        if type(seq) is not int:
            verdict.add("misplaced", _name(row), "it cannot be read, or its number is no number")
            return
        if seq > self._expected:
            gone = str(self._expected) if seq == self._expected + 1 else f"{self._expected} to {seq - 1}"
            verdict.add("missing", f"seq {gone}", "deleted from the middle of the log, or the row after them is forged")
            self._before = row.prev_hash
        anchor = self._wanted.pop(seq, None)
        if anchor is not None and anchor.hash != row.hash:
            verdict.add("cut off", _name(row), "an anchor names another row at this place: the log was rewritten")
        self._check(row)
        self._expected, self._before = seq + 1, row.hash

    def end(self) -> None:
        """The log has no more rows."""
        verdict = self._verdict
        after = [seq for seq in self._wanted if seq > verdict.head.seq]
        if after:
            detail = f"an anchor names seq {min(after)}; the log ends before it"
            verdict.add("cut off", f"seq {verdict.head.seq + 1}", detail)

    def _check(self, row: AuditEntry) -> None:
        verdict, linked = self._verdict, self._keys.sealed(row)
        if linked:
            assert row.seq is not None
            verdict.head = Anchor(row.seq, row.hash)
        if self._keys.fit(row) is None:
            verdict.add("edited", _name(row), "its content is not what was written, or Holdfast never wrote it")
            return
        if not linked:
            verdict.add("misplaced", _name(row), "its number or its link is not what was sealed")
        elif row.prev_hash != self._before:
            verdict.add("misplaced", _name(row), "it does not follow the row before it")
        if self._latest is not None and row.at < self._latest - LATE:
            detail = f"written at {row.at:%Y-%m-%d %H:%M}, and follows a row of {self._latest:%Y-%m-%d %H:%M}"
            verdict.add("late", _name(row), detail)
        self._latest = row.at


class Keys:
    """The keys at hand; the one that fitted last is tried first."""

    def __init__(self) -> None:
        self._keys = chain.keys()

    def fit(self, row: AuditEntry) -> bytes | None:
        """The key this row was written with; None when it is none of ours."""
        if not sound(row):
            return None
        for key in self._keys:
            if chain.row_mac(row, key) == row.mac:
                self._keys.remove(key)
                self._keys.insert(0, key)
                return key
        return None

    def sealed(self, row: AuditEntry) -> bool:
        """The link was made with one of the keys (a row may be sealed after the key changed)."""
        return any(chain.link(row, key) == row.hash for key in self._keys)

    def removed(self, seq: int, digest: str, mac: str) -> bool:
        """The rows before the anchor were removed by Holdfast."""
        return any(chain.anchor_mac(seq, digest, key) == mac for key in self._keys)


def _base(verdict: Verdict, keys: Keys) -> Anchor:
    """Where the chain begins: after what `prune_audit` took away, as the newest true anchor says."""
    for seq, digest, mac in pruned():
        if keys.removed(seq, digest, mac):
            return Anchor(seq, digest)
        verdict.add("edited", f"anchor at seq {seq}", "not written by Holdfast: older rows were deleted by hand")
    return Anchor(0, chain.GENESIS)


def _repeated() -> list[tuple[int, int]]:
    """The first and the last id of rows that share their digest; each covers the moment, so there is
    one a row."""
    counted = AuditEntry.raw.values("mac").annotate(rows=Count("id"), first=Min("id"), last=Max("id"))
    return list(counted.filter(rows__gt=1).values_list("first", "last")[:MAX_FAULTS])


def _check_waiting(verdict: Verdict, keys: Keys, max_unsealed_s: float) -> None:
    oldest = None
    for row in rows(unsealed().order_by("id")):
        verdict.unsealed += 1
        fits = keys.fit(row) is not None
        if fits:
            oldest = row.at if oldest is None else min(oldest, row.at)
        else:
            verdict.add("edited", f"id {row.id} (not sealed)", "Holdfast did not write this content")
    if oldest is None:
        return
    verdict.unsealed_age_s = max(0.0, (now() - oldest).total_seconds())
    if verdict.unsealed_age_s > max_unsealed_s:
        detail = f"{verdict.unsealed} rows wait, the oldest for {verdict.unsealed_age_s:.0f} s: does a sentinel run?"
        verdict.add("waiting", "the end of the log", detail)


def _name(row: AuditEntry) -> str:
    if type(row.seq) is not int:
        return f"id {row.id}"
    return f"seq {row.seq} (id {row.id})"
