"""R20.3: a machine in the middle, with a valid certificate of the server's own name, passes proofs on.

It has all of the agent's trust (the authority signed for it, the host name is right) and a channel of
its own to the server. What it does not have is the key of the server's certificate.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from controlplane.access.models import AuditEntry
from controlplane.fleet.models import Node
from controlplane.runtime.models import FrameCounter
from tests.integration.agents.authority import Authority, fingerprint
from tests.integration.backend.conftest import eventually
from tests.integration.backend.fake_agent import join_token
from tests.integration.backend.front import HOST, Dialler, Front, changed
from tests.integration.backend.servers import RedisServer, Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]


class Scene:
    """A web process bound to `ours`, an enrolled agent, and an authority that signs for anybody."""

    def __init__(self, directory: Path, redis_url: str, *, bound: bool) -> None:
        self.authority = Authority(directory, "trusted")
        self.context = self.authority.context(HOST)
        self.certificate = directory / "proxy.crt"
        self.certificate.write_bytes(self.authority.served.read_bytes())
        self.ours = fingerprint(self.certificate)
        # The same authority, the same name: only the key, and so the certificate, is another.
        self.stolen_name = self.authority.context(HOST)
        self.theirs = fingerprint(self.authority.served)
        self.stack = Stack(directory, redis_url)
        self.stack.web.env["HOLDFAST_ALLOWED_HOSTS"] = HOST
        self.stack.web.env["DJANGO_SETTINGS_MODULE"] = "tests.attacks.backend.strict_hosts"
        if bound:
            self.stack.web.env["HOLDFAST_TLS_CERTIFICATE"] = str(self.certificate)
        self.agent = Dialler(directory / "node", self.authority)

    async def start(self) -> None:
        self.stack.web.start()
        await asyncio.to_thread(self.stack.wait_for_web)
        token = await sync_to_async(join_token)()
        await asyncio.to_thread(self.agent.enrol, self.stack.url, token)

    def proxy(self) -> Front:
        return Front(self.stack.url, self.context)

    def middle(self, **changes: Any) -> Front:
        return Front(self.stack.url, self.stolen_name, **changes)


def refusals(reason: str) -> int:
    return sum(FrameCounter.objects.filter(reason=reason).values_list("count", flat=True))


async def test_the_proof_goes_in_through_the_proxy_and_through_nothing_else(
    transactional_db: None, tmp_path: Path, redis_server: RedisServer
) -> None:
    scene = Scene(tmp_path, redis_server.url, bound=True)
    attacks: list[tuple[str, dict[str, Any], list[str]]] = [
        ("passes all on", {}, ["bad_protocol", scene.theirs, HOST, "HOLDFAST_TLS_CERTIFICATE"]),
        ("drops the offer", {"offer": False}, ["bad_protocol", "did not offer", "X-Holdfast-Channel"]),
        ("drops the question", {"challenge": changed(bind_tls=False)}, ["bad_protocol", "changes their messages"]),
        ("writes our certificate into the proof", {"proof": changed(tls_certificate=scene.ours)}, ["unknown_node"]),
        ("takes the certificate out of the proof", {"proof": changed(tls_certificate="")}, ["unknown_node"]),
        ("drops the offer and writes our certificate",
         {"offer": False, "proof": changed(tls_certificate=scene.ours)}, ["unknown_node"]),
        ("says that loopback was dialled",
         {"proof": changed(tls_certificate="", server_host="localhost")}, ["unknown_node"]),
    ]  # fmt: skip
    try:
        await scene.start()
        async with scene.proxy() as proxy:
            assert await scene.agent.told(proxy) == "welcome"
        counter = (await sync_to_async(Node.objects.get)()).session_counter
        for name, changes, words in attacks:
            async with scene.middle(**changes) as middle:
                said = await scene.agent.told(middle)
                assert middle.passed_on == 1, name
            assert [word for word in words if word not in said] == [], f"{name}: {said}"
        node = await sync_to_async(Node.objects.get)()
        # None of them was a session, nor is the node in doubt for it.
        assert (node.session_counter, node.doubt, node.state) == (counter, "", "ready")
        await eventually("each is counted", lambda: (refusals("other_certificate"), refusals("unknown_key")) == (3, 4))
        rows = await sync_to_async(list)(AuditEntry.objects.filter(action="agent.proof_refused").values_list("reason"))
        told = [reason for (reason,) in rows if reason.startswith("other_certificate")]
        assert len(told) == 1, "a row a minute, whatever is tried"
        assert f"{scene.theirs} of {HOST}" in told[0]
        async with scene.proxy() as proxy:
            assert await scene.agent.told(proxy) == "welcome"
    finally:
        scene.stack.stop()


async def test_without_the_setting_the_host_name_alone_counts(
    transactional_db: None, tmp_path: Path, redis_server: RedisServer
) -> None:
    """As docs/settings.md says; so the test above closes something."""
    scene = Scene(tmp_path, redis_server.url, bound=False)
    try:
        await scene.start()
        async with scene.middle() as middle:
            assert await scene.agent.told(middle) == "welcome"
    finally:
        scene.stack.stop()
