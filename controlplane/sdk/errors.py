"""What a call can end in.

SdkError                  everything below
|- UnavailableError       no answer after the retries: wrong address, server down, timeout
`- ApiError               the server answered with a problem (`.problem`)
   |- AuthError           401 sign in, or the token is wrong
   |- ForbiddenError      403 the scope is too small
   |- NotFoundError       404 no such object, or it is invisible to you
   |- ConflictError       409 the present state does not allow it
   |  `- ChangedError     412 it has changed since you read it (`if_match`)
   |- GoneError           410 no longer kept: list again
   |- InvalidError        400, 413, 415, 422, 428 the request is wrong (`.problem.errors`)
   |- ThrottledError      429 too many requests
   `- ServerError         5xx
"""

from controlplane.protocol.rest import Problem


class SdkError(Exception):
    """Base."""


class UnavailableError(SdkError):
    """No usable answer came."""


class ApiError(SdkError):
    """The server refused. `problem` is its application/problem+json."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.title}: {problem.detail}" if problem.detail else problem.title)
        self.problem = problem


class AuthError(ApiError):
    """401."""


class ForbiddenError(ApiError):
    """403."""


class NotFoundError(ApiError):
    """404."""


class ConflictError(ApiError):
    """409."""


class ChangedError(ConflictError):
    """412."""


class GoneError(ApiError):
    """410."""


class InvalidError(ApiError):
    """400, 413, 415, 422 or 428."""


class ThrottledError(ApiError):
    """429."""


class ServerError(ApiError):
    """5xx."""


BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidError,
    401: AuthError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    412: ChangedError,
    413: InvalidError,
    415: InvalidError,
    422: InvalidError,
    428: InvalidError,
    429: ThrottledError,
}


def error_for(problem: Problem) -> ApiError:
    """The exception of a problem, by its status."""
    kind = BY_STATUS.get(problem.status, ServerError if problem.status >= 500 else ApiError)
    return kind(problem)
