"""Where a request comes from, as an address. The one place that decides it."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest


def client_address(asked: HttpRequest | Mapping[str, Any]) -> str:
    """The peer of a request, or of an ASGI scope; "" where none is known (a unix socket)."""
    if isinstance(asked, HttpRequest):
        return str(asked.META.get("REMOTE_ADDR", ""))
    return str((asked.get("client") or ("",))[0])
