"""Errors of the server's services.

    ServiceError            something that the caller asked for cannot be done
    |- NotFound             no such object
    |- Conflict             the object's state does not allow it (a retry may help later)
    |- LostRace             another writer was first; load again and decide again
    |- Denied               the caller may not do this
    `- Invalid              the request is wrong; `errors` names each fault

The API turns these into problem+json; nothing below it knows HTTP.
"""


class ServiceError(Exception):
    """Base. `code` is stable; `retryable` says whether the same call may succeed later."""

    code = "service_error"
    retryable = False

    def __init__(self, detail: str, *, errors: list[dict[str, str]] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = errors or []


class NotFound(ServiceError):
    """No such object."""

    code = "not_found"


class Conflict(ServiceError):
    """The object's state does not allow it."""

    code = "conflict"
    retryable = True


class LostRace(Conflict):
    """Another writer was first: an ordinary outcome."""

    code = "lost_race"


class Denied(ServiceError):
    """The caller may not do this."""

    code = "denied"


class Invalid(ServiceError):
    """`errors`: [{"pointer", "message", "fix"}]."""

    code = "invalid"


def refuse(why_not: str) -> None:
    """An act's sentence of `policy.capabilities`: raises Conflict with it, unless it is empty."""
    if why_not:
        raise Conflict(why_not)


class LostLead(Exception):
    """A sentinel that leads no more was about to write. No fault: whoever leads now does that work."""
