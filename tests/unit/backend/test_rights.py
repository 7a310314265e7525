"""Rights in projects, for any account, token, role and visibility."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controlplane.access.models import ApiToken, Scope
from controlplane.access.project_models import SCOPE_OF, Role, Visibility
from controlplane.access.rights import Rights, rights_among
from controlplane.access.scopes import allows

NAMES = ("default", "vision", "speech")


@dataclass
class Group:
    name: str


@dataclass
class Groups:
    names: tuple[str, ...]

    def all(self) -> list[Group]:
        return [Group(name) for name in self.names]


@dataclass
class Account:
    """As much of an account as rights look at."""

    scope: Scope
    is_active: bool = True
    is_authenticated: bool = True
    is_superuser: bool = field(init=False)
    is_staff: bool = False
    groups: Groups = field(init=False)

    def __post_init__(self) -> None:
        self.is_superuser = self.scope == Scope.ADMIN
        self.groups = Groups((self.scope,))


scopes, roles = st.sampled_from(Scope), st.dictionaries(st.sampled_from(NAMES), st.sampled_from(Role))
projects = st.tuples(*(st.tuples(st.just(name), st.sampled_from(Visibility)) for name in NAMES))
worlds: Any = {"scope": scopes, "among": projects, "held": roles}


def rights(scope: Scope, among: Any, held: Any, token: ApiToken | None = None) -> Rights:
    found = rights_among(Account(scope), token, among, held)
    assert found is not None
    return found


@given(**worlds, made_for=scopes, bound=st.sampled_from(["", *NAMES, "gone"]))
def test_a_token_has_no_more_than_its_account_and_its_own_scope_anywhere(
    scope: Scope, among: Any, held: Any, made_for: Scope, bound: str
) -> None:
    account = rights(scope, among, held)
    token = rights(scope, among, held, ApiToken(scope=made_for, project=bound))
    for where in (None, *NAMES, "no-row"):
        mine, its = account.within(where), token.within(where)
        assert its is None or (allows(mine, its) and allows(made_for, its)), where
    assert not bound or set(token.projects) <= {bound}
    assert not bound or (token.fleet == Scope.READ and not token.everything)


@given(**worlds)
def test_a_private_project_is_seen_by_its_members_and_by_administrators_of_the_fleet(
    scope: Scope, among: Any, held: Any
) -> None:
    found = rights(scope, among, held)
    for name, visibility in among:
        if visibility == Visibility.PRIVATE:
            assert found.sees(name) == (name in held or scope == Scope.ADMIN)
        else:
            assert found.sees(name)
    assert found.whole == all(found.sees(name) for name, _ in among)
    assert found.sees("no-row") == (scope == Scope.ADMIN)


@given(**worlds)
def test_a_member_has_what_the_role_includes_and_more_only_by_scope_where_that_counts(
    scope: Scope, among: Any, held: Any
) -> None:
    found = rights(scope, among, held)
    for name, visibility in among:
        has = found.within(name)
        by_role = SCOPE_OF[held[name]] if name in held else None
        by_scope = scope if scope == Scope.ADMIN or visibility == Visibility.OPEN else None
        by_sight = Scope.READ if visibility != Visibility.PRIVATE else None
        each = [one for one in (by_role, by_scope, by_sight) if one is not None]
        assert (has is None) == (not each)
        assert all(allows(has, one) for one in each)
        assert has is None or has in each


@given(**worlds)
def test_who_is_not_active_has_nothing(scope: Scope, among: Any, held: Any) -> None:
    assert rights_among(Account(scope, is_active=False), None, among, held) is None
