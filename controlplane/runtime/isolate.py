"""One subject's fault stops nobody else's turn.

For loops over nodes, jobs or rows of many: each turn runs by itself. A failure is counted,
logged at most once in `LOG_EVERY_S` for each kind of work, and the loop goes on. An outage
of the database is no fault of a subject and goes to the caller; so does it that somebody else leads by now.
"""

import time
from collections.abc import Callable

from controlplane.runtime import metrics
from controlplane.runtime.errors import LostLead
from controlplane.runtime.logs import get
from controlplane.runtime.outages import raise_if_outage

LOG_EVERY_S = 10.0
_log = get(__name__)
_logged_at: dict[str, float] = {}


def isolated(what: str, subject: str, work: Callable[[], object]) -> bool:
    """Run `work`; False when it failed. `what` is one of a few constant names."""
    try:
        work()
    except LostLead:
        raise
    except Exception as error:
        raise_if_outage(error)
        metrics.ISOLATED_FAILURES.labels(what=what).inc()
        moment = time.monotonic()
        if moment - _logged_at.get(what, -LOG_EVERY_S) >= LOG_EVERY_S:
            _logged_at[what] = moment
            _log.exception("failed for one, the others continue", what=what, subject=subject)
        return False
    return True
