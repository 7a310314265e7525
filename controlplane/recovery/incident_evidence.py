"""What the ranks of an incident left behind, put together for people: the first failure with the
end of its log, and the stacks of all ranks in groups. Read by `recovery.selectors`; writes nothing."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from django.db.models import QuerySet

from controlplane.changes.outbox import LIVE
from controlplane.dispatch.models import Command
from controlplane.jobs.models import Rank
from controlplane.policy.first_error import LastWords, first_error
from controlplane.policy.stack_groups import group_stacks, sentence
from controlplane.protocol.diagnostics import HANG, NOT_GOT, STACKS
from controlplane.recovery.models import Incident, RankLook
from controlplane.runtime.clock import iso

Json = dict[str, Any]
TAIL_LINES = 60
MAX_RANKS = 10_000
EVERY = -1
GATHER = "gather_stacks"
"""The action of a plan that asks ranks where they stand."""


def first_failure(row: Incident) -> Json | None:
    """The first rank that failed in this incident, across all ranks that ended by themselves,
    with the end of its log. None: none did."""
    signals = row.signals.filter(kind="rank_exit", replica__isnull=False).order_by("seen_at", "id")[:MAX_RANKS]
    ended = {(s.replica, s.incarnation, s.rank): s for s in signals}
    if row.job_id is None or not ended:
        return None
    ranks = Rank.objects.filter(replica__attempt__job_id=row.job_id, replica__incarnation__in={k[1] for k in ended})
    found: dict[tuple[int, int, int], Rank] = {}
    for rank in ranks.select_related("replica__attempt", "node").order_by("replica__attempt__number"):
        key = (rank.replica.index, rank.replica.incarnation, rank.rank)
        if key in ended:
            found[key] = rank
    words = [
        LastWords(
            replica=key[0],
            incarnation=key[1],
            rank=key[2],
            ended_s=ended[key].seen_at.timestamp(),
            text=rank.log_tail,
            killed=rank.exit_expected,
            signal=rank.exit_signal,
        )
        for key, rank in found.items()
    ]
    first = first_error(words)
    if first is None:
        return None
    key = (first.words.replica, first.words.incarnation, first.words.rank)
    rank, lines = found[key], first.words.text.splitlines()
    return {
        "replica": key[0],
        "incarnation": key[1],
        "rank": key[2],
        "attempt": rank.replica.attempt.number,
        "node_name": rank.node.name,
        "exit_code": rank.exit_code,
        "exit_signal": rank.exit_signal,
        "at": iso(ended[key].seen_at),
        "error": first.line,
        "root": first.root,
        "followed": first.followed,
        "failed": len(words),
        "log": "\n".join(lines[-TAIL_LINES:]),
        "truncated": len(lines) > TAIL_LINES,
    }


def stack_groups(row: Incident) -> Json | None:
    """The stacks of all ranks that were asked for them, in groups of those that were heard. `late`: of how
    many nothing was got before they were stopped. None: nobody was asked, and nobody was heard."""
    asked = asked_ranks(row)
    looks = row.looks.filter(look=STACKS).order_by("at", "id")[:MAX_RANKS]
    newest: dict[tuple[int, int, int], RankLook] = {(k.replica, k.incarnation, k.rank): k for k in looks}
    if not newest and not asked:
        return None
    groups = group_stacks(
        (f"{k.replica}.{k.incarnation}/{k.rank}", k.place, "" if k.method == NOT_GOT else k.text)
        for _, k in sorted(newest.items())
    )
    late = sum(1 for look in newest.values() if look.method == NOT_GOT)
    unheard = [awaited for key, awaited in asked.items() if key not in newest]
    count = Count(
        heard=len(newest) - late, late=late, awaited=sum(unheard), silent=len(unheard) - sum(unheard), known=bool(asked)
    )
    missing = f"{len(unheard):,} not heard" if unheard else ""
    return {
        "sentence": ", ".join(filter(None, (sentence(groups), missing))),
        "groups": [msgspec.to_builtins(group) for group in groups],
        "ranks": count.ranks,
        "late": late,
        "note": count.note(by_decision=bool(asked) or _asked_by_decision(row)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Ranks by what came of them: a stack (`heard`), word that it was too late, nothing yet (`awaited`), nothing
    at all (`silent`). `known`: by orders that are still kept."""

    heard: int
    late: int
    awaited: int
    silent: int
    known: bool

    @property
    def ranks(self) -> int:
        """All that were asked."""
        return self.heard + self.late + self.awaited + self.silent

    def note(self, *, by_decision: bool) -> str:
        """Nothing is claimed of an order that did not hold, nor of ranks that were not heard. `by_decision`:
        one asked them."""
        if self.late == self.ranks:
            return "Too late: not taken. Every rank was gone, or did not answer, before it could be inspected."
        if by_decision and not self.known:
            ranks = "1 rank" if self.heard == 1 else f"{self.heard:,} ranks"
            return f"Taken from {ranks} while they lived. How many were asked is not kept any more."
        if self.heard == self.ranks:
            return f"Taken from all {self.ranks:,} ranks while they lived."
        parts = (
            (self.late, "for {} it was too late: not taken"),
            (self.awaited, "{} may still answer"),
            (self.silent, "of {} nothing came"),
        )
        words = "; ".join(text.format(f"{count:,}") for count, text in parts if count)
        return f"Taken from {self.heard:,} of {self.ranks:,} ranks while they lived; {words}."


def asked_ranks(row: Incident) -> dict[tuple[int, int, int], bool]:
    """Every rank (replica, incarnation, rank) that the incident's decisions asked where it stands, as far as their
    orders are kept; True: one of the orders may still be answered."""
    commands = _commands(row).filter(body__look__in=(STACKS, HANG)).values_list(
        "node_id", "attempt", "created_at", "state", "body"
    )  # fmt: skip
    found = list(commands)
    columns = ("replica__index", "replica__incarnation", "rank", "node_id", "replica__attempt__number")
    ranks = Rank.objects.filter(
        replica__attempt__job_id=row.job_id, replica__attempt__number__in={attempt for _, attempt, *_ in found}
    )
    here: dict[tuple[str, int], list[tuple[tuple[int, int, int], datetime, datetime | None]]] = defaultdict(list)
    started = ranks.filter(started_at__isnull=False)
    for index, life, rank, node, attempt, begun, ended in started.values_list(*columns, "started_at", "released_at"):
        here[node, attempt].append(((index, life, rank), begun, ended))
    asked: dict[tuple[int, int, int], bool] = {}
    for node, attempt, at, state, body in found:
        for key, begun, ended in here[node, attempt]:
            if begun <= at and (ended is None or ended > at) and _is_meant(key, body):
                asked[key] = asked.get(key, False) or state in LIVE
    return asked


def _is_meant(key: tuple[int, int, int], body: Json) -> bool:
    mine = (body["replica"], body["incarnation"]) == key[:2] and body["rank"] in (EVERY, key[2])
    return body["replica"] == EVERY or mine


def _asked_by_decision(row: Incident) -> bool:
    """A decision of it asked ranks where they stand, whether or not its orders are kept."""
    return any(act["action"] == GATHER for acts in row.decisions.values_list("actions", flat=True) for act in acts)


def _commands(row: Incident) -> QuerySet[Command]:
    ids = list(row.decisions.values_list("id", flat=True))
    return Command.objects.filter(decision_id__in=ids, kind="collect_stacks")
