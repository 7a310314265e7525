"""The restart ledger of a job, and what its budget leaves."""

from controlplane.protocol.rest.base import Answer


class RestartEntry(Answer, frozen=True, kw_only=True):
    """One entry of the restart ledger. `rung`: view_change, rank, replica or attempt; not
    `charged`: part of a higher rung of the same decision, ordered by a person, or after a start
    that a node refused. `program`: after the program had ended by itself."""

    at: str
    attempt: int
    rung: str
    charged: bool
    program: bool
    replica: int | None
    incarnation: int | None
    decision_id: str
    reason_code: str
    sentence: str


class Budget(Answer, frozen=True, kw_only=True):
    """The restart budget over all rungs: allowed, spent, and the newest entries. `rungs`:
    entries of each rung; `no_progress_cycles`: ended attempts in a row that brought no newer
    checkpoint. Of what is charged: the whole job's restarts, those of replicas in the newest attempt, and in the window
    those after which the program had ended by itself; a limit of None: none but that on all."""

    max_restarts: int
    restarts_total: int
    restarts_per_window: int
    restarts_in_window: int
    window_s: float
    max_no_progress: int
    no_progress_cycles: int
    max_attempt_restarts: int | None
    attempt_restarts: int
    restarts_per_attempt: int | None
    restarts_in_attempt: int
    program_restarts_per_window: int | None
    program_in_window: int
    rungs: dict[str, int]
    entries: list[RestartEntry]
