"""When and how often a node enrols: once, and again only with a token it has not used.

Called by `agents.main`. A join token is spent only after the key is on disk and there is room
for the server's answer; a refused or used token is never tried twice, so that neither a full
disk nor a revocation can eat a token's uses.
"""

import asyncio
import os
from collections.abc import Callable

from agents.config import Config
from agents.errors import ConfigError, EnrolmentError
from agents.link.durable import reserve, sync_directory
from agents.link.enrol import Credential, Facts, enrol, store_credential, token_digest
from agents.link.identity import NodeIdentity, key_path, own_key
from agents.link.keys import NodeKey, SessionCounter
from agents.log import note

_RETRY_FIRST_S, _RETRY_MAX_S = 0.5, 30.0


async def enrol_patiently(config: Config, facts: Facts) -> Credential:
    """Until it works, or the server says that it never will (EnrolmentError)."""
    if not config.join_token:
        raise EnrolmentError(f"no credential in {config.identity_dir} and no join token: give --join-token-file")
    wait_s = _RETRY_FIRST_S
    while True:
        try:
            return await asyncio.to_thread(_first, config, facts)
        except EnrolmentError as error:
            if not error.retry:
                raise
            note("enrolment to be tried again", error=error, wait_s=wait_s)
        await asyncio.sleep(wait_s)
        wait_s = min(wait_s * 2, _RETRY_MAX_S)


def _first(config: Config, facts: Facts) -> Credential:
    """1. Key on disk. 2. The count of sessions, without which none can be opened. 3. Room for the
    answer. 4. The token. 5. The answer on disk."""
    path = config.identity_dir / "credential"
    try:
        key = own_key(config.identity_dir)
        SessionCounter(config.identity_dir / "session_counter").keep()
    except OSError as error:
        raise EnrolmentError(
            f"{config.identity_dir} cannot keep the node's key ({error.strerror or error}): the join token is not used;"
            " make room there, or repair the disk",
            retry=True,
        ) from error
    reserve(path)
    credential = enrol(config.server, join_token=config.join_token, key=key, old_key=None, facts=facts)
    store_credential(path, credential, reserved=True)
    return credential


class Outcast:
    """The server does not know this node any more, or has revoked it."""

    def __init__(self, config: Config, identity: NodeIdentity, facts: Callable[[], Facts]) -> None:
        self._config, self._identity, self._facts = config, identity, facts
        self._tried: set[str] = set()

    async def try_again(self) -> bool:
        """Enrol with a token that was not used yet, if there is one. True: connect at once."""
        token = self._config.join_token
        digest = token_digest(token) if token else ""
        if not token or digest == self._identity.credential.token_sha256 or digest in self._tried:
            note(
                "this node is not admitted, and no fresh join token is here",
                fix="an administrator runs `holdfast node restore` (it was revoked) or `holdfast node re-enrol` (its"
                " key is lost or void), which shows a join token for this node alone: put it into the file of"
                " --join-token-file and start the agent again",
            )
            return False
        try:
            await asyncio.to_thread(self._again, token)
        except (EnrolmentError, ConfigError, OSError) as error:
            if not getattr(error, "retry", False):
                self._tried.add(digest)
            note("enrolling again failed", error=error)
            return False
        note("enrolled again", node_id=self._identity.credential.node_id)
        return True

    def _again(self, token: str) -> None:
        """With a key of its own; the old one says that this is the same node."""
        folder = self._config.identity_dir
        fresh_path = folder / "key.enrol"
        key = NodeKey.load(fresh_path)
        if key is None:
            key = NodeKey.fresh()
            key.store(fresh_path)
        reserve(folder / "credential")
        old_key = NodeKey.load(key_path(folder))
        credential = enrol(self._config.server, join_token=token, key=key, old_key=old_key, facts=self._facts())
        os.replace(fresh_path, key_path(folder))
        sync_directory(folder)
        store_credential(folder / "credential", credential, reserved=True)
        self._identity.enrolled_again(key, credential)
