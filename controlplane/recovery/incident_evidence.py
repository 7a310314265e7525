"""What the ranks of an incident left behind, put together for people: the first failure with the
end of its log, and the stacks of all ranks in groups. Read by `recovery.selectors`; writes nothing."""

from typing import Any

import msgspec

from controlplane.jobs.models import Rank
from controlplane.policy.first_error import LastWords, first_error
from controlplane.policy.stack_groups import group_stacks, sentence
from controlplane.protocol.diagnostics import NOT_GOT, STACKS
from controlplane.recovery.models import Incident, RankLook
from controlplane.runtime.clock import iso

Json = dict[str, Any]
TAIL_LINES = 60
MAX_RANKS = 10_000


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
    """The stacks of all ranks looked at, in groups. `late`: of how many nothing was got before
    they were stopped. None: nobody was looked at."""
    looks = row.looks.filter(look=STACKS).order_by("at", "id")[:MAX_RANKS]
    newest: dict[tuple[int, int, int], RankLook] = {(k.replica, k.incarnation, k.rank): k for k in looks}
    if not newest:
        return None
    groups = group_stacks(
        (f"{k.replica}.{k.incarnation}/{k.rank}", k.place, "" if k.method == NOT_GOT else k.text)
        for _, k in sorted(newest.items())
    )
    late = sum(1 for look in newest.values() if look.method == NOT_GOT)
    return {
        "sentence": sentence(groups),
        "groups": [msgspec.to_builtins(group) for group in groups],
        "ranks": len(newest),
        "late": late,
        "note": _note(len(newest), late),
    }


def _note(ranks: int, late: int) -> str:
    """Nothing is claimed of an order that did not hold."""
    if late == 0:
        return f"Taken from all {ranks} ranks while they lived."
    if late == ranks:
        return "Too late: not taken. Every rank was gone, or did not answer, before it could be inspected."
    return f"Taken from {ranks - late} of {ranks} ranks while they lived; for {late} it was too late: not taken."
