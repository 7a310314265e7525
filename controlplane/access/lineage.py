"""Tokens that made tokens: who may see and revoke which.

The rules (docs/access.md, "Accounts and tokens"):
- A token made by a token lasts no longer and reaches no further than its maker
  (`services.create_api_token`); revoking one revokes all that came from it.
- A token sees and revokes itself and what came from it, nothing beside or above it.
- A signed-in person sees and revokes all tokens of the account.
- Whoever holds admin, now, may revoke anybody's.
"""

from collections.abc import Iterable

from django.contrib.auth.models import AbstractBaseUser
from django.db.models import QuerySet

from controlplane.access.models import ApiToken


def with_descendants(token_id: str) -> set[str]:
    """Ids of the token and of all that came from it."""
    found, level = {token_id}, {token_id}
    while level:
        level = children(level) - found
        found |= level
    return found


def children(ids: Iterable[str]) -> set[str]:
    """Ids of the tokens these made."""
    return set(ApiToken.objects.filter(parent_id__in=list(ids)).values_list("id", flat=True))


def visible(user: AbstractBaseUser, *, token_id: str | None) -> QuerySet[ApiToken]:
    """What the account sees (`token_id` None: signed in) or one of its tokens does."""
    rows = ApiToken.objects.filter(user=user)
    return rows if token_id is None else rows.filter(pk__in=with_descendants(token_id))
