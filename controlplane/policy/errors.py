"""Errors of the policy package.

PolicyError                anything the policy refuses
|- IllegalTransition       a state table forbids the move (a caller's bug)
|- Unsatisfiable           the devices asked for do not exist or are not free
`- NoLayout                no TP x PP x DP fits the devices that are left
"""


class PolicyError(ValueError):
    """Base. `code` is stable; the text says what was refused and why."""

    code = "policy_error"


class IllegalTransition(PolicyError):
    """Retrying cannot help: the caller moved from a state it had not read."""

    code = "illegal_transition"


class Unsatisfiable(PolicyError):
    """Helps to retry once capacity has changed."""

    code = "unsatisfiable"


class NoLayout(PolicyError):
    """Helps to retry once there are more devices."""

    code = "no_layout"
