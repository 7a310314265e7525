"""What of a job's restarts counts against its budget (`policy.budget`), as a snapshot has it."""

import msgspec


class BudgetFact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the restart ledger has charged, over all rungs but plan.UNPAID. `no_progress_cycles`: ended attempts in a
    row that brought no newer checkpoint; none as soon as the one that lives has brought one. Of what is charged:
    `attempt_restarts` of the whole job, `restarts_in_attempt` of replicas in the attempt that lives, and
    `program_in_window` after which the program had ended by itself."""

    restarts_total: int = 0
    restarts_in_window: int = 0
    evictions_total: int = 0
    no_progress_cycles: int = 0
    attempt_restarts: int = 0
    restarts_in_attempt: int = 0
    program_in_window: int = 0
