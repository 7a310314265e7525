"""A node that enrolled with a token that holds, in rows: no server, no socket."""

from typing import Any

from agents.link.keys import NodeKey
from controlplane.access import join_tokens
from controlplane.fleet.enrolment import Enrolment, enroll_node
from controlplane.fleet.models import Node
from controlplane.protocol.handshake import enrolment_statement
from controlplane.protocol.samples import DeviceInfo
from tests.integration.backend.fake_agent import join_token


def held_node(name: str) -> Node:
    """Its row; two devices."""
    return Node.objects.get(pk=enroll_node(asked(name, join_token(hold=True))))


def asked(name: str, token: str, *, key: NodeKey | None = None, old_key: NodeKey | None = None) -> Enrolment:
    """What its agent asks with, signed."""
    key = key or NodeKey.fresh()
    statement: dict[str, Any] = {
        "token_sha256": join_tokens.digest(token), "node_name": name, "public_key": key.public_key, "boot_id": "b1",
    }  # fmt: skip
    devices = [
        DeviceInfo(index=i, uuid=f"GPU-{name}-{i}", model="Test", memory_bytes=1 << 34, driver="simulated")
        for i in range(2)
    ]
    signed = enrolment_statement(**statement)
    return Enrolment(
        name=name, join_token=token, public_key=key.public_key, boot_id="b1", devices=devices, proof=key.sign(signed),
        old_key_proof=b"" if old_key is None else old_key.sign(signed),
    )  # fmt: skip
