"""Python client of the control plane's REST API. Needs neither Django nor torch.

    with Client("http://127.0.0.1:8000", token="holdfast_...") as client:
        job = client.jobs.submit({"metadata": {...}, "spec": {...}})
        for event in client.jobs.watch(job.id):
            print(event.sentence)

`AsyncClient` has the same methods as coroutines and async iterators. Answers are the
types of `controlplane.protocol.rest`; refusals are the tree in `sdk.errors`.
"""

from controlplane.sdk.aio import AsyncClient
from controlplane.sdk.client import Client
from controlplane.sdk.errors import (
    ApiError,
    AuthError,
    ChangedError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    SdkError,
    ServerError,
    ThrottledError,
    UnavailableError,
)

__all__ = [
    "ApiError",
    "AsyncClient",
    "AuthError",
    "ChangedError",
    "Client",
    "ConflictError",
    "ForbiddenError",
    "GoneError",
    "InvalidError",
    "NotFoundError",
    "SdkError",
    "ServerError",
    "ThrottledError",
    "UnavailableError",
]
