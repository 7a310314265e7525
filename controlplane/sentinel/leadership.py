"""The leases of shards: a thread that renews ours, sees others lapse, takes, gives and says that we live.

It does nothing else, so that nothing else can make it late. What it does `leading.plan` says, of the rows; each move is
one by compare-and-set of what was seen. The other threads read `held`.
"""

import os
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import DatabaseError, close_old_connections, transaction
from django.db.models import F, Q

from controlplane.recovery import clock_set
from controlplane.runtime import beats, exporter, metrics
from controlplane.runtime.clock import age_s, now, now_s
from controlplane.runtime.isolate import isolated
from controlplane.runtime.logs import get
from controlplane.runtime.models import ProcessBeat
from controlplane.sentinel.leading import HUNG_S, LEASE_S, LOOK_S, RENEW_S, Lease, Member, Plan, plan

_log = get(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A lease of ours. `kept_s` (monotonic): when it was last renewed. `handed`: its leader before gave it to us."""

    term: int
    kept_s: float
    handed: bool = False

    def holds(self, moment: float) -> bool:
        """Nobody can have taken it yet. Without this nothing is shown under it; rows are fenced by the term."""
        return moment - self.kept_s < LEASE_S


class Seen:
    """For how long each row is as it is, by the monotonic clock."""

    def __init__(self) -> None:
        self._marks: dict[str, tuple[object, float]] = {}

    def same_s(self, name: str, mark: object, moment: float) -> float:
        """Seconds since `mark` was first seen."""
        if name not in self._marks or self._marks[name][0] != mark:
            self._marks[name] = (mark, moment)
        return moment - self._marks[name][1]

    def keep(self, names: set[str]) -> None:
        """Forget all others."""
        self._marks = {name: seen for name, seen in self._marks.items() if name in names}


class Leadership:
    """`held`: by shard. `follow`: shards to hear. `elsewhere`: those that another one leads, as far as we know.
    `giving`: shards of ours, and to whom: given by the thread that has stored what it holds of them (`hand_over`).
    `ready`: shards that it hears for long enough. `detail` is said with the beat, and how long ago the other thread
    turned (`turned_at`, monotonic). `why` not empty: why we lead nothing."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self.count = name, count
        self.held: dict[int, Held] = {}
        self.follow: frozenset[int] = frozenset()
        self.elsewhere: frozenset[int] = frozenset()
        self.giving: dict[int, str] = {}
        self.ready: frozenset[int] = frozenset()
        self.detail: dict[str, Any] = {}
        self.turned_at = time.monotonic()
        self.why = ""
        self._terms: dict[int, int] = {}
        self._seen = Seen()
        self._renewed_at = -RENEW_S
        self._beat_at = -RENEW_S
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lead", daemon=True)
        metrics.SHARDS.set(count)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the leases stay ours until `leave`, or until they lapse."""
        self._stop.set()
        self._thread.join(5.0)

    def term(self, shard: int = 0) -> int | None:
        """Under which we lead it; None while another one does."""
        found = self.held.get(shard)
        return None if found is None else found.term

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.turn()
            except DatabaseError as error:
                # No database, no lead: whoever reaches it takes the lease.
                self.elsewhere = frozenset()
                self._set_held({})
                _log.warning("the database is away", error=str(error))
            except Exception:
                # A catch-all: without this thread nobody would renew what we lead.
                metrics.ISOLATED_FAILURES.labels(what="lead_turn").inc()
                _log.exception("a turn of the leases failed")
            finally:
                close_old_connections()
            self._stop.wait(LOOK_S)

    def turn(self) -> None:
        """One round: see, renew, take, say."""
        moment = time.monotonic()
        rows = self._rows()
        leases = {shard: self._lease(shard, rows.get(shard), moment) for shard in range(self.count)}
        hung = moment - self.turned_at > HUNG_S
        wanted = plan(self.name, self.count, leases, self._members(moment), self._terms, hung=hung)
        self.elsewhere = frozenset(s for s, lease in leases.items() if lease.owner != self.name and not lease.lapsed)
        self._set_held(self._kept(wanted, rows, moment))
        for shard in wanted.take:
            # What is wrong with one, such as a clock's step that cannot be moved, keeps no other from being led.
            isolated("lead", str(shard), partial(self._take, shard, rows.get(shard), moment))
        for shard in wanted.leave:
            self.release(shard)
            self._terms.pop(shard, None)
        if self.why != wanted.why and wanted.why:
            _log.warning("leads nothing", why=wanted.why)
        self.why, self.follow = wanted.why, wanted.follow | self.held.keys()
        self.giving = {shard: name for shard, name in wanted.give.items() if shard in self.held}
        if moment - self._beat_at >= RENEW_S:
            self._beat_at = moment
            self._say(moment)

    def _rows(self) -> dict[int, ProcessBeat]:
        names = {beats.lease_name(shard): shard for shard in range(self.count)}
        return {names[row.name]: row for row in ProcessBeat.objects.filter(name__in=names)}

    def _lease(self, shard: int, row: ProcessBeat | None, moment: float) -> Lease:
        mark = None if row is None else (row.term, row.beat_at, row.detail.get("owner"))
        same_s = self._seen.same_s(beats.lease_name(shard), mark, moment)
        if row is None:
            return Lease(shard=shard, same_s=same_s)
        return Lease(
            shard=shard,
            owner=str(row.detail.get("owner", "")),
            term=row.term,
            age_s=age_s(row.beat_at) or 0.0,
            same_s=same_s,
            count=int(row.detail.get("count", 1)),
            handed=bool(row.detail.get("handed")),
        )

    def _members(self, moment: float) -> list[Member]:
        found = []
        for row in ProcessBeat.objects.filter(role=beats.SENTINEL).exclude(detail__has_key="left"):
            same_s = self._seen.same_s(row.name, row.beat_at, moment)
            ready = frozenset(int(shard) for shard in row.detail.get("ready", ()))
            count = int(row.detail.get("count", 1))
            found.append(
                Member(name=row.name, age_s=age_s(row.beat_at) or 0.0, same_s=same_s, count=count, ready=ready)
            )
        self._seen.keep({each.name for each in found} | {beats.lease_name(shard) for shard in range(self.count)})
        return found

    def _kept(self, wanted: Plan, rows: dict[int, ProcessBeat], moment: float) -> dict[int, Held]:
        """Leases that are ours after this turn, renewed where that is due; taken from us meanwhile are those whose
        term has moved."""
        terms = {shard: rows[shard].term for shard in (*wanted.keep, *wanted.accept)}
        kept = {shard: self.held[shard] for shard in wanted.keep if shard in self.held}
        if not terms or (moment - self._renewed_at < RENEW_S and kept.keys() == terms.keys()):
            return kept
        renewed, ours = self._renew(terms, unwatched=0 in terms and 0 not in kept)
        if len(renewed) == len(terms):
            # Of those that a write of ours holds the lease is renewed at the next look, as long as it is ours.
            self._renewed_at = moment
        metrics.TAKEN.labels(how="handed").inc(sum(shard in renewed for shard in wanted.accept))
        fresh = {
            shard: Held(term=terms[shard], kept_s=moment, handed=self._was_handed(shard, wanted)) for shard in renewed
        }
        return {shard: each for shard, each in kept.items() if shard in ours} | fresh

    def _was_handed(self, shard: int, wanted: Plan) -> bool:
        held = self.held.get(shard)
        return shard in wanted.accept or (held is not None and held.handed)

    def _renew(self, terms: dict[int, int], *, unwatched: bool) -> tuple[set[int], set[int]]:
        """Those that are renewed, and those that are ours still: while a write of ours holds a row it is not waited
        for, and nobody can take it. `unwatched`: of the first one we had lost sight."""
        which, shards = Q(pk__in=()), {beats.lease_name(shard): shard for shard in terms}
        for name, shard in shards.items():
            which |= Q(name=name, term=terms[shard])
        step = clock_set.unwatched() if unwatched else None
        with transaction.atomic():
            rows = ProcessBeat.objects.filter(which)
            free = rows.select_for_update(no_key=True, skip_locked=True).order_by("pk")
            renewed = list(free.values_list("name", flat=True))
            ProcessBeat.objects.filter(name__in=renewed).update(**self._kept_now())
            ours = set(rows.values_list("name", flat=True))
            if step is not None and beats.lease_name(0) in renewed:
                clock_set.move(step.step_s, set_s=now_s(), since_s=step.since_s)
        return {shards[name] for name in renewed}, {shards[name] for name in ours}

    def _take(self, shard: int, seen: ProcessBeat | None, moment: float) -> None:
        """Under the next term, unless another one was first, or a write under the term before is not committed."""
        step = clock_set.unwatched() if shard == 0 else None
        # Both or neither: a lease that is kept by the present clock hides the step from the next look.
        with transaction.atomic():
            term = self._raise(beats.lease_name(shard), seen)
            if step is not None and term is not None:
                clock_set.move(step.step_s, set_s=now_s(), since_s=step.since_s)
        if term is not None:
            before = "" if seen is None else seen.detail.get("owner")
            _log.info("leadership", shard=shard, term=term, name=self.name, before=before)
            metrics.TAKEN.labels(how="taken").inc()
            self._set_held({**self.held, shard: Held(term=term, kept_s=moment)})

    def _raise(self, name: str, seen: ProcessBeat | None) -> int | None:
        fields = self._kept_now()
        fields["started_at"] = fields["beat_at"]
        if seen is None:
            made = {"role": "lease", "term": 1, **fields}
            return 1 if ProcessBeat.objects.get_or_create(name=name, defaults=made)[1] else None
        rows = ProcessBeat.objects.filter(name=name, term=seen.term, beat_at=seen.beat_at)
        if rows.select_for_update(no_key=True, skip_locked=True).first() is None:
            return None
        rows.update(term=F("term") + 1, **fields)
        return seen.term + 1

    def _kept_now(self) -> dict[str, Any]:
        return {"beat_at": now(), "pid": os.getpid(), "detail": beats.lease_of(self.name, count=self.count)}

    def hand_over(self, shard: int, term: int, to: str) -> None:
        """In the caller's transaction, which holds the row: what it writes is the last of our term."""
        changes = {"beat_at": now(), "detail": beats.lease_of(to, count=self.count, handed=True)}
        ProcessBeat.objects.filter(name=beats.lease_name(shard), term=term).update(
            term=F("term") + 1, started_at=changes["beat_at"], **changes
        )
        _log.info("handed over", shard=shard, term=term, to=to)

    def leave(self) -> None:
        """Give back all leases that are ours, and take no part any more."""
        for shard in list(self._terms):
            self.release(shard)
        self._set_held({})
        beats.beat(beats.SENTINEL, self.name, {**self.detail, "leads": False, "left": True})

    def release(self, shard: int) -> None:
        """Give the lease back at once, where it is ours."""
        term = self._terms.get(shard)
        if term is not None:
            rows = ProcessBeat.objects.filter(name=beats.lease_name(shard), term=term)
            rows.update(detail=beats.lease_of("", count=self.count))

    def _set_held(self, held: dict[int, Held]) -> None:
        # Of a lease that we lost sight of the term is known: unless another one took it, it is ours still.
        self._terms |= {shard: each.term for shard, each in held.items()}
        if self.held.keys() != held.keys():
            _log.info("leads", shards=sorted(held), name=self.name)
        self.held = held
        metrics.LEADER.set(bool(held))
        for shard in range(self.count):
            metrics.LEADS.labels(shard=str(shard)).set(shard in held)
            metrics.TERM.labels(shard=str(shard)).set(self._terms.get(shard, 0))

    def _say(self, moment: float) -> None:
        detail = {
            **self.detail,
            "late_s": round(max(0.0, moment - self.turned_at), 3),
            "leads": bool(self.held),
            "term": self.term(),
            "shards": {str(shard): each.term for shard, each in sorted(self.held.items())},
            "ready": sorted(self.ready),
            "count": self.count,
            "metrics": exporter.address(),
        }
        if self.why:
            # Whoever counts shares counts without it.
            detail |= {"blind": True, "why": self.why, "left": True}
        beats.beat(beats.SENTINEL, self.name, detail)
