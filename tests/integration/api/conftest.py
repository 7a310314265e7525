"""Accounts, callers and rows for the API tests."""

import contextlib
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.test import Client

from controlplane.access.scopes import allows, scope_of
from controlplane.access.services import create_api_token
from controlplane.api import throttle
from controlplane.fleet.models import Device, Node
from controlplane.runtime.ids import new_id

SPEC: dict[str, Any] = {
    "metadata": {"name": "tiny"},
    "spec": {"resources": {"nodes": 2, "gpus_per_node": 2}, "parallelism": {"pp": 2}, "training": {"steps": 10}},
}
SPEC["spec"]["training"]["warmup_steps"] = 2
SPEC["spec"]["resiliency"] = {"allow_faults": True}


class Caller:
    """A Django test client that sends one token and speaks JSON."""

    def __init__(self, token: str = "") -> None:
        self._client = Client(raise_request_exception=False)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, **headers: str) -> Any:
        """GET under /api/v1."""
        return self._client.get("/api/v1" + path, headers=self._headers | headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        """POST JSON under /api/v1."""
        data = body if isinstance(body, str | bytes) else json.dumps({} if body is None else body)
        kind = headers.pop("content_type", "application/json")
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._client.post("/api/v1" + path, data=data, content_type=kind, headers=self._headers | named)

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """What is asked inside leaves nothing: no row, no cookie, and no share of anybody's rate. So one world does for
        many operations."""
        throttle.requests.clear()
        cookies = copy.deepcopy(self._client.cookies)
        with transaction.atomic():
            yield
            transaction.set_rollback(True)
        self._client.cookies = cookies


@pytest.fixture(autouse=True)
def _forget_rates() -> Iterator[None]:
    throttle.requests.clear()
    yield


@pytest.fixture
def user(db: None) -> User:
    return User.objects.create_user("ada", password="correct horse battery")


@pytest.fixture
def caller(user: User) -> Any:
    """caller("submit") -> Caller with a token of that scope, as whose owner the user may from
    then on do as much; caller("") is nobody."""

    def make(scope: str) -> Caller:
        if not scope:
            return Caller("")
        grant(user, scope)
        return Caller(create_api_token(user, name=scope, scope=scope).secret)

    return make


def grant(user: User, scope: str) -> None:
    """Let the account do as much as `scope`, if it could do less."""
    if not allows(scope_of(User.objects.get(pk=user.pk)), scope):
        user.groups.add(Group.objects.get_or_create(name=scope)[0])


@pytest.fixture
def node(db: None) -> Node:
    return make_node("node-1")


def make_node(name: str, devices: int = 2) -> Node:
    """A connected node with devices."""
    row = Node.objects.create(id=new_id("node"), name=name, public_key=new_id("crd"), connected=True)
    for index in range(devices):
        Device.objects.create(
            id=new_id("dev"), node=row, index=index, uuid=f"GPU-{name}-{index}", model="Toy", driver="simulated"
        )
    return row
