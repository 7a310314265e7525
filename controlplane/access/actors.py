"""Who acted, in words for people: `user:ada (token nightly)` where the audit log has the token's id.

Called by whatever writes a sentence or keeps a name to show; what is compared and filtered stays the actor itself.
"""

from collections.abc import Iterable

from controlplane.access.models import ApiToken
from controlplane.protocol.plain import shown

TOKEN = "token:"  # noqa: S105 - how an actor begins, no secret
ACCOUNT_CHARS, NAME_CHARS = 60, 40
"""Of the account and of the token's name: with the words around them, within the 120 of the shortest column."""


def in_words(actor: str) -> str:
    """`actor` as people read it. Any but a token that is known stays as it is."""
    return all_in_words([actor])[actor]


def all_in_words(actors: Iterable[str]) -> dict[str, str]:
    """The words of each, by one query."""
    found = dict.fromkeys(actors, "")
    ids = [actor.removeprefix(TOKEN) for actor in found if actor.startswith(TOKEN)]
    rows = ApiToken.objects.filter(pk__in=ids).values_list("pk", "user__username", "name") if ids else ()
    known = {f"{TOKEN}{pk}": _words(username, name) for pk, username, name in rows}
    return {actor: known.get(actor, actor) for actor in found}


def _words(username: str, name: str) -> str:
    return f"user:{username[:ACCOUNT_CHARS]} (token {shown(name, layout=False)[:NAME_CHARS]})"
