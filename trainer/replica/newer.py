"""Whether this rank is to leave the epoch it trains in: a newer view is at hand, and due.

A view may name the step with which it begins (`View.at_step`). A rank that trains knows nothing
of it until then, but connects its group. One that is in a view change, or has answered a view,
will train no further in its epoch: to it every newer view is due.
"""

from trainer.control.mailbox import Mailbox
from trainer.replica.standing import Standing


class NewerView:
    """Asked from any thread. `changing`: the training thread is in a view change; `answered`:
    the newest epoch whose view was flushed."""

    def __init__(self, standing: Standing, mailbox: Mailbox) -> None:
        self._standing, self._mailbox = standing, mailbox
        self.changing = False
        self.answered = 0

    def __call__(self) -> bool:
        """The installed epoch is over."""
        view, age_s = self._mailbox.view_and_age_s()
        if view is None or view.epoch <= self._standing.epoch:
            return False
        stopped = self.changing or self.answered > self._standing.epoch
        return stopped or view.is_due(committed=self._standing.committed, awaited_s=age_s)
