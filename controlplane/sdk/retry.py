"""When a call is sent again: only if that is safe, a few times, with full jitter, within
one deadline, and not before the server's Retry-After."""

import httpx

from controlplane.sdk.calls import RETRIED_STATUSES

ATTEMPTS = 5
WAIT_MAX_S = 5.0
DEADLINE_S = 30.0
RETRY_AFTER_MAX_S = 10.0


class TryAgain(Exception):
    """Inside the retry loop only: the answer was one that may get better."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.response = response


def should_retry(error: Exception) -> bool | float:
    """For stamina: False, True (its own backoff) or the seconds the server asked for."""
    if isinstance(error, TryAgain):
        text = error.response.headers.get("Retry-After", "")
        return min(float(text), RETRY_AFTER_MAX_S) if text.isdigit() else True
    return isinstance(error, httpx.TransportError)


def raise_if_transient(response: httpx.Response) -> httpx.Response:
    """TryAgain for statuses that may pass."""
    if response.status_code in RETRIED_STATUSES:
        raise TryAgain(response)
    return response
