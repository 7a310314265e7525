"""Short titles of faults: what failed, where, in a line of a list.

Called by the rules that answer a fault, and by `recovery.incidents` for a decision whose rule
names no title. The sentence beside it says the rest. A title begins with a capital letter, has
at most `TITLE_MAX` characters and ends with a whole word.
"""

import signal
from collections import defaultdict

from controlplane.policy.exits import SHELL_SIGNALS, culprit
from controlplane.policy.facts import node_name, signals_about
from controlplane.policy.plan import ORDERED
from controlplane.policy.proved import Failure
from controlplane.policy.signals import TITLES
from controlplane.policy.snapshot import JobSnapshot, SignalFact

TITLE_MAX = 80
MAX_LISTED = 4
"""Replicas that one title names by number."""


def short(text: str) -> str:
    """The first sentence of `text` as a title: cut between words, where it must be cut."""
    line = " ".join(text.split()).partition(". ")[0].rstrip(" .")
    if len(line) > TITLE_MAX:
        head = line[: TITLE_MAX + 1]
        cut = max(head.rfind(mark) for mark in (": ", "; ", ", ", " ("))
        line = head[: cut if cut >= TITLE_MAX // 2 else head.rfind(" ")] if " " in head else head[:TITLE_MAX]
        line = line.rstrip(" ,;:(.")
    return line[:1].upper() + line[1:]


def number_of(count: int, thing: str) -> str:
    """`1 replica`, `2 replicas`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def list_of(numbers: list[str], thing: str) -> str:
    """`rank 1`, `ranks 0 and 1`, `ranks 0, 1 and 4`; many are counted."""
    if len(numbers) > MAX_LISTED:
        return number_of(len(numbers), thing)
    if len(numbers) == 1:
        return f"{thing} {numbers[0]}"
    return f"{thing}s {', '.join(numbers[:-1])} and {numbers[-1]}"


def of_failures(snapshot: JobSnapshot, failures: tuple[Failure, ...]) -> str:
    """One title for all that one decision answers; empty for none."""
    if not failures:
        return ""
    if len(failures) == 1:
        return short(_of(snapshot, failures[0]))
    named = list_of([str(failure.replica.index) for failure in failures], "replica")
    kinds = {failure.kind for failure in failures}
    if kinds == {ORDERED}:
        return short(f"{named} evicted on request")
    if len(kinds) == 1 and (first := failures[0]).kind in TITLES:
        return short(f"{_of(snapshot, first)}, and {named} with it")
    return short(f"{named}{_where(snapshot, failures)} failed at once")


def _where(snapshot: JobSnapshot, failures: tuple[Failure, ...]) -> str:
    """` on node-2`, ` on 9 nodes`: what their findings name; empty where they name none."""
    ids = {signal_id for failure in failures for signal_id in failure.signal_ids}
    nodes = sorted({s.node_id for s in snapshot.signals if s.id in ids and s.node_id})
    if not nodes:
        return ""
    return f" on {node_name(snapshot, nodes[0]) if len(nodes) == 1 else number_of(len(nodes), 'node')}"


def _heard_of_one(snapshot: JobSnapshot, failure: Failure) -> bool:
    """One rank of several was overdue so far: it may wait for one that is told a moment later; a mute one does not."""
    late = {s.rank for s in signals_about(snapshot, "rank_overdue", failure.replica)}
    return failure.replica.world_size > 1 and len(late) == 1 and not _is_mute(failure)


def _is_mute(failure: Failure) -> bool:
    named = str(failure.evidence.get("ranks", "")).split(", ")
    return set(named) <= {str(rank) for rank in failure.replica.silent_ranks}


def _of(snapshot: JobSnapshot, failure: Failure) -> str:
    replica = f"replica {failure.replica.index}"
    match failure.kind:
        case "rank_exit":
            return _exit(snapshot, failure)
        case "hang":
            ranks = str(failure.evidence.get("ranks", failure.evidence.get("rank")))
            if _heard_of_one(snapshot, failure):
                return f"{replica} hangs, rank {ranks} overdue first"
            named = list_of(ranks.split(", "), "rank")
            return f"{named} of {replica} {'hangs' if named.startswith('rank ') else 'hang'}"
        case kind if kind in TITLES:
            return TITLES[kind].format_map(defaultdict(lambda: None, failure.evidence))
        case "stuck":
            return f"{replica} holds all others up"
        case "unflushed":
            return f"{replica} does not answer a view"
        case "setup_timeout":
            return f"{replica} did not start in time"
        case "unfit_node":
            return f"a node would not start {replica}"
        case "catch_up_timeout":
            return f"{replica} did not catch up in time"
        case "unreachable":
            return f"{replica} cannot be reached by the others"
        case kind if kind == ORDERED:
            by = str(failure.evidence.get("ordered_by", "")).partition(": ")[0]
            return f"{replica} evicted at the request of {by}"
        case _:
            return f"{replica}: {failure.sentence}"


def _exit(snapshot: JobSnapshot, failure: Failure) -> str:
    exits = signals_about(snapshot, "rank_exit", failure.replica)
    first = culprit(exits)
    if first is None:
        return f"{number_of(failure.replica.exited_ranks, 'rank')} of replica {failure.replica.index} ended"
    return of_exit(first, node_name(snapshot, first.node_id) if first.node_id else "")


def of_exit(told: SignalFact, node: str) -> str:
    """How a rank ended, on the node of this name ("": not known)."""
    where = f" on {node}" if node else ""
    return f"rank {told.rank} of replica {told.replica}{where} {_ended(int(told.value), told.evidence)}"


def _ended(code: int, evidence: dict[str, str | int | float | bool | None]) -> str:
    if evidence.get("exit_code") is None and evidence.get("signal") is None and "signal" in evidence:
        return "ended, nobody saw how"
    if SHELL_SIGNALS < code < SHELL_SIGNALS + signal.NSIG:
        code = SHELL_SIGNALS - code
    if code >= 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed ({name})" if name == "SIGKILL" else f"ended by {name}"
