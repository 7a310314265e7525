"""What somebody may do, in the fleet and in each project. Asked by the API and by open streams; never writes.

An account has one scope in the fleet, which counts for nodes, the fleet's policy and what else belongs to no project.
In a project it has the most of: its role there; in an open project its scope; in a visible one, reading. An
administrator of the fleet administers every project. A token has at most its own scope of that, and one that is bound
to a project has it there alone; of the fleet such a token may read.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q

from controlplane.access.models import ApiToken, Scope
from controlplane.access.project_models import SCOPE_OF, Membership, Project, Role, Visibility
from controlplane.access.scopes import allows, narrower, scope_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """`fleet`: scope outside of projects. `projects`: of each project that may be read, the scope in it. `everything`:
    it is an administrator's of the fleet, who reads also what names a project that has no row. `whole`: there is no
    project that may not be read."""

    fleet: Scope
    projects: Mapping[str, Scope] = field(default_factory=dict)
    everything: bool = False
    whole: bool = False

    def within(self, project: str | None) -> Scope | None:
        """The scope in this project, or for None in the fleet; None: it is not even seen."""
        if project is None:
            return self.fleet
        return self.projects.get(project, self.fleet if self.everything else None)

    def sees(self, project: str | None) -> bool:
        """What belongs to this project, or for None to the fleet, may be read."""
        return self.within(project) is not None

    @property
    def most(self) -> Scope:
        """The widest scope that is held anywhere."""
        best = self.fleet
        for scope in self.projects.values():
            best = scope if allows(scope, best) else best
        return best

    def only(self, path: str, *, none_too: bool = False) -> Q:
        """A filter: rows whose project at this path (`job__project`) may be read; with `none_too` also those that
        belong to none."""
        if self.everything:
            return Q()
        found = Q(**{f"{path}__in": sorted(self.projects)})
        return found | Q(**{f"{path}__isnull": True}) if none_too else found


EVERYTHING = Rights(fleet=Scope.ADMIN, everything=True, whole=True)
"""Of an administrator of the fleet, whatever projects there are."""


def rights_of(user: Any, token: ApiToken | None = None) -> Rights | None:
    """Of an account, or of one of its tokens. None: it may do nothing at all."""
    return rights_of_all([(user, token)])[0]


def rights_of_all(asked: Collection[tuple[Any, ApiToken | None]]) -> list[Rights | None]:
    """`rights_of` each, in two queries and one for the groups of each account that has not read them."""
    users = {user.pk for user, _ in asked}
    roles: dict[Any, dict[str, Role]] = defaultdict(dict)
    for account, project, role in Membership.objects.filter(account__in=users).values_list(
        "account_id", "project_id", "role"
    ):
        roles[account][project] = Role(role)
    projects = list(Project.objects.values_list("name", "visibility"))
    return [rights_among(user, token, projects, roles[user.pk]) for user, token in asked]


def rights_among(
    user: Any, token: ApiToken | None, projects: Sequence[tuple[str, str]], roles: Mapping[str, Role]
) -> Rights | None:
    """`rights_of` by these rows: each project's name and visibility, and the account's roles by project. Pure."""
    own = scope_of(user) if user.is_active else None
    if own is None:
        return None
    fleet = Scope(own)
    of_account = {name: scope for name, kind in projects if (scope := _scope(fleet, kind, roles.get(name)))}
    everything, whole = fleet == Scope.ADMIN, len(of_account) == len(projects)
    if token is None:
        return Rights(fleet=fleet, projects=of_account, everything=everything, whole=whole)
    within = {name: narrower(scope, token.scope) for name, scope in of_account.items()}
    if token.project:
        return Rights(fleet=Scope.READ, projects={name: within[name] for name in [token.project] if name in within})
    return Rights(fleet=narrower(fleet, token.scope), projects=within, everything=everything, whole=whole)


def _scope(fleet: Scope, visibility: str, role: Role | None) -> Scope | None:
    """Of an account with this scope in the fleet, in a project where it has this role (None: it is no member)."""
    if fleet == Scope.ADMIN or (role is None and visibility == Visibility.OPEN):
        return fleet
    if role is None:
        return Scope.READ if visibility == Visibility.VISIBLE else None
    of_role = SCOPE_OF[role]
    return fleet if visibility == Visibility.OPEN and allows(fleet, of_role) else of_role
