"""Dead letters applied again, in the order in which they came. Called by people, after the
fault that kept the events from being applied is mended."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from controlplane.access import services as access
from controlplane.recovery import deadletter, ingest
from controlplane.recovery.models import DeadLetter, LetterState
from controlplane.runtime.errors import Conflict
from controlplane.runtime.locks import retrying
from controlplane.runtime.outages import raise_if_outage


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """`failure` "": it is applied; else why it waits on."""

    letter: DeadLetter
    failure: str


def replay(letters: list[DeadLetter], *, actor: str, reason: str = "") -> Iterator[Replayed]:
    """Each of them, one transaction a letter; one that fails again stops none behind it.
    Raises the database's own error while it is out."""
    for letter in letters:
        try:
            retrying(partial(ingest.replay, letter.pk), "replay a dead letter")
        except Exception as error:
            raise_if_outage(error)
            if not isinstance(error, Conflict):
                deadletter.failed_again(letter, error)
            yield Replayed(letter=letter, failure=deadletter.reason_of(error))
            continue
        data = {"kind": letter.kind, "seq": letter.seq, "id": letter.pk}
        access.audit(actor, "dead_letter.replay", letter.node_id, reason=reason, data=data)
        yield Replayed(letter=letter, failure="")


def chosen(*, node: str = "", letter_id: str = "") -> list[DeadLetter]:
    """Those that wait, of a node (id or name), or the one; all when neither is named. Raises
    NotFound or Conflict for one that does not wait."""
    if letter_id:
        return [deadletter.waiting(letter_id)]
    rows = deadletter.letters(state=LetterState.WAITING).select_related("node")
    if node:
        rows = rows.filter(node__name=node) | rows.filter(node_id=node)
    return list(rows.order_by("id"))
