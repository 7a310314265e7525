"""Sessions of the page: the database keeps only the SHA-256 of a session's key.

`settings.SESSION_ENGINE` names this module; Django's and Channels' session middleware make
the store. What a reader of the database (a dump, a backup, a replica) finds in
`django_session` signs nobody in: the key exists in the browser's cookie alone.
"""

from typing import Any

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.contrib.sessions.models import Session
from django.utils.crypto import constant_time_compare

from controlplane.access.tokens import digest
from controlplane.runtime.clock import now

# Column django_session.session_key holds 40 characters: 160 of the digest's bits.
STORED_CHARS = 40


def stored_key(session_key: str) -> str:
    """What the database knows a session by."""
    return digest(f"session:{session_key}")[:STORED_CHARS]


class SessionStore(DatabaseStore):
    """Django's own, with the primary key hashed at each of its doors."""

    def _get_session_from_db(self) -> Session | None:
        if self.session_key is None:
            return None
        found = Session.objects.filter(session_key=stored_key(self.session_key), expire_date__gt=now()).first()
        if found is None:
            self._session_key = None
        return found

    async def _aget_session_from_db(self) -> Session | None:
        if self.session_key is None:
            return None
        rows = Session.objects.filter(session_key=stored_key(self.session_key), expire_date__gt=now())
        found = await rows.afirst()
        if found is None:
            self._session_key = None
        return found

    def exists(self, session_key: str) -> bool:
        """True if a session of that key is kept."""
        return super().exists(stored_key(session_key))

    async def aexists(self, session_key: str) -> bool:
        """See `exists`."""
        return await super().aexists(stored_key(session_key))

    def create_model_instance(self, data: dict[str, Any]) -> Session:
        """The row to save."""
        row: Session = super().create_model_instance(data)  # type: ignore[assignment]
        row.session_key = stored_key(row.session_key)
        return row

    async def acreate_model_instance(self, data: dict[str, Any]) -> Session:
        """See `create_model_instance`."""
        row: Session = await super().acreate_model_instance(data)  # type: ignore[assignment]
        row.session_key = stored_key(row.session_key)
        return row

    def delete(self, session_key: str | None = None) -> None:
        """End the session of that key, else this one."""
        key = session_key or self.session_key
        if key is not None:
            Session.objects.filter(session_key=stored_key(key)).delete()

    async def adelete(self, session_key: str | None = None) -> None:
        """See `delete`."""
        key = session_key or self.session_key
        if key is not None:
            await Session.objects.filter(session_key=stored_key(key)).adelete()


def signed_in_as(row: Session) -> tuple[str, str] | None:
    """(primary key of the user, hash of his password's hash) a session's row was made for;
    None where nobody signed in with it."""
    data = SessionStore().decode(row.session_data)
    if SESSION_KEY not in data or BACKEND_SESSION_KEY not in data:
        return None
    return str(data[SESSION_KEY]), str(data.get(HASH_SESSION_KEY, ""))


def password_unchanged(user: User, told: str) -> bool:
    """`told`, from `signed_in_as`, was made from the password the user has now."""
    current = [user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()]
    return any(constant_time_compare(told, one) for one in current)
