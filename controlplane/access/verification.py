"""Is the audit log whole? Walks the chain once, in order, and names the first row that is not
as it was sealed. Called by `manage.py verify_audit` and `prune_audit`; reads only.

    edited      the content is not what its keyed digest says, or was never written by Holdfast
    misplaced   the row is whole but its number or its link to the row before is not
    missing     rows between two others are gone
    cut off     the chain ends before an anchor, or another row stands in its place
    repeated    a row was copied: an act that happened once is told twice
    waiting     rows wait to be sealed for longer than sealing takes: nobody seals
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from django.db.models import Count

from controlplane.access import chain
from controlplane.access.models import AuditAnchor, AuditEntry
from controlplane.access.sealing import Anchor, unsealed
from controlplane.runtime.clock import now

CHUNK = 2000
MAX_FAULTS = 20
MAX_UNSEALED_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFault:
    """`row`: "seq 7 (id 12)" or where there is no row, the number at which one should be."""

    kind: str
    row: str
    detail: str


@dataclass(slots=True, kw_only=True)
class Verdict:
    """`rows` were read, from `first_seq` to the head. `faults`: the first MAX_FAULTS, in order of
    seq; `broken` counts all. `unsealed_age_s`: of the oldest row that waits."""

    rows: int = 0
    first_seq: int = 1
    head: Anchor = field(default_factory=lambda: Anchor(0, chain.GENESIS))
    unsealed: int = 0
    unsealed_age_s: float = 0.0
    broken: int = 0
    faults: list[ChainFault] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Nothing was found."""
        return self.broken == 0

    def add(self, kind: str, row: str, detail: str) -> None:
        """Note a fault."""
        self.broken += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(ChainFault(kind=kind, row=row, detail=detail))


def verify(anchors: Sequence[Anchor] = (), *, max_unsealed_s: float = MAX_UNSEALED_S) -> Verdict:
    """Read the whole chain in bounded memory. `anchors`: heads noted outside the database."""
    verdict, keys = Verdict(), Keys()
    base = _base(verdict, keys)
    verdict.first_seq = base.seq + 1
    wanted = {anchor.seq: anchor for anchor in anchors}
    expected, before = base.seq + 1, base.hash
    for row in _sealed_after(base.seq):
        assert row.seq is not None
        verdict.rows += 1
        if row.seq > expected:
            gone = str(expected) if row.seq == expected + 1 else f"{expected} to {row.seq - 1}"
            verdict.add("missing", f"seq {gone}", "deleted from the middle of the log")
            before = row.prev_hash
        _check_row(row, before, keys, verdict)
        anchor = wanted.get(row.seq)
        if anchor is not None and anchor.hash != row.hash:
            verdict.add("cut off", _name(row), "an anchor names another row at this place: the log was rewritten")
        expected, before = row.seq + 1, row.hash
    verdict.head = Anchor(expected - 1, before)
    for anchor in sorted(wanted.values(), key=lambda anchor: anchor.seq):
        if anchor.seq >= expected:
            verdict.add("cut off", f"seq {expected}", f"an anchor names seq {anchor.seq}; the log ends before it")
            break
    for mac in _repeated():
        copies = [_name(row) for row in AuditEntry.raw.filter(mac=mac).order_by("id")[:MAX_FAULTS]]
        verdict.add("repeated", copies[-1], f"the same row as {copies[0]}")
    _check_waiting(verdict, keys, max_unsealed_s)
    return verdict


class Keys:
    """The keys at hand; the one that fitted last is tried first."""

    def __init__(self) -> None:
        self._keys = chain.keys()

    def fit(self, row: AuditEntry) -> bytes | None:
        """The key this row was written with; None when it is none of ours."""
        for key in self._keys:
            if chain.row_mac(row, key) == row.mac:
                self._keys.remove(key)
                self._keys.insert(0, key)
                return key
        return None

    def sealed(self, row: AuditEntry) -> bool:
        """The link was made with one of the keys (a row may be sealed after the key changed)."""
        return any(chain.link(row, key) == row.hash for key in self._keys)

    def removed(self, anchor: AuditAnchor) -> bool:
        """The rows before the anchor were removed by Holdfast."""
        return any(chain.anchor_mac(anchor.seq, anchor.hash, key) == anchor.mac for key in self._keys)


def _base(verdict: Verdict, keys: Keys) -> Anchor:
    """Where the chain begins: after what `prune_audit` took away."""
    anchor = AuditAnchor.objects.order_by("-seq").first()
    if anchor is None:
        return Anchor(0, chain.GENESIS)
    if not keys.removed(anchor):
        verdict.add("edited", f"anchor at seq {anchor.seq}", "not written by Holdfast: older rows were deleted by hand")
    return Anchor(anchor.seq, anchor.hash)


def _repeated() -> list[str]:
    """Digests that more than one row has; each covers the moment, so there is one a row."""
    counted = AuditEntry.raw.values("mac").annotate(rows=Count("id")).filter(rows__gt=1)
    return list(counted.values_list("mac", flat=True)[:MAX_FAULTS])


def _sealed_after(seq: int) -> Iterator[AuditEntry]:
    return AuditEntry.raw.filter(seq__gt=seq).order_by("seq").iterator(chunk_size=CHUNK)


def _check_row(row: AuditEntry, before: str, keys: Keys, verdict: Verdict) -> None:
    if keys.fit(row) is None:
        verdict.add("edited", _name(row), "its content is not what was written, or Holdfast never wrote it")
    elif not keys.sealed(row):
        verdict.add("misplaced", _name(row), "its number or its link is not what was sealed")
    elif row.prev_hash != before:
        verdict.add("misplaced", _name(row), "it does not follow the row before it")


def _check_waiting(verdict: Verdict, keys: Keys, max_unsealed_s: float) -> None:
    oldest = None
    for row in unsealed().order_by("id").iterator(chunk_size=CHUNK):
        verdict.unsealed += 1
        oldest = row.at if oldest is None else min(oldest, row.at)
        if keys.fit(row) is None:
            verdict.add("edited", f"id {row.id} (not sealed)", "Holdfast did not write this content")
    if oldest is None:
        return
    verdict.unsealed_age_s = max(0.0, (now() - oldest).total_seconds())
    if verdict.unsealed_age_s > max_unsealed_s:
        detail = f"{verdict.unsealed} rows wait, the oldest for {verdict.unsealed_age_s:.0f} s: does a sentinel run?"
        verdict.add("waiting", "the end of the log", detail)


def _name(row: AuditEntry) -> str:
    return f"seq {row.seq} (id {row.id})"
