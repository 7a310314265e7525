"""POST /agent/v1/enroll against generated garbage: an answer below 500, whatever is sent."""

import json
from typing import Any

import pytest
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.link.enrol import token_digest
from agents.link.keys import NodeKey
from tests.integration.backend.fake_agent import join_token

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]

PATH = "/agent/v1/enroll"
TEXTS = st.sampled_from(["", "\x00", "a\x00", "\ud800", "../x", "node\n", "x" * 300, "\u202e"]) | st.text(max_size=8)
NUMBERS = st.sampled_from([-1, 0, 2**31, 2**63, 2**64, 10**400, -(10**400)]) | st.floats() | st.integers()
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    "join_token", "node_name", "agent_version", "boot_id", "devices", "segment", "journal_id", "public_key", "proof",
    "old_key_proof", "machine_id",
)  # fmt: skip
DEVICE = {"index": 0, "uuid": "GPU-0", "model": "T", "memory_bytes": 1, "driver": "simulated"}


@st.composite
def bodies(draw: st.DrawFn, token: str) -> bytes:
    """A request that is right but for some fields, or nothing of the kind."""
    if draw(st.integers(0, 4)) == 0:
        depth = draw(st.integers(1, 16_000))
        return draw(st.binary(max_size=300) | JSON.map(_json) | st.sampled_from([b"[" * depth, b'{"a":' * depth]))
    body: dict[str, Any] = proved(token, f"node-{draw(st.integers(0, 10**9))}") | {
        "devices": [DEVICE | draw(st.dictionaries(st.sampled_from(sorted(DEVICE)), JSON, max_size=2))],
    }
    return _json(body | draw(st.dictionaries(st.sampled_from(FIELDS) | TEXTS, JSON, max_size=3)))


def proved(token: str, name: str) -> dict[str, Any]:
    """A right request of a new node."""
    key = NodeKey.fresh()
    said = {"node_name": name, "public_key": key.public_key, "boot_id": "boot"}
    return said | {"join_token": token, "proof": key.enrolment(token_sha256=token_digest(token), **said)}


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_whatever_is_sent_to_enrolment_is_answered_below_500() -> None:
    token = join_token(uses=10_000)
    client = Client(raise_request_exception=False)

    @settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(body=bodies(token), kind=st.sampled_from(["application/json", "text/plain", "", "multipart/form-data"]))
    def attack(body: bytes, kind: str) -> None:
        answer = client.generic("POST", PATH, body, content_type=kind)
        assert answer.status_code < 500, body

    attack()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("index", 2**63),
        ("index", -(2**40)),
        ("memory_bytes", 2**64),
        ("uuid", "GPU\x00"),
        ("model", "\ud800"),
        ("driver", "x" * 4_000),
    ],
)
def test_a_device_that_no_column_holds_is_answered_below_500(field: str, value: Any) -> None:
    body = proved(join_token(), "node-1") | {"devices": [DEVICE | {field: value}]}
    client = Client(raise_request_exception=False)
    assert client.generic("POST", PATH, _json(body), content_type="application/json").status_code < 500
