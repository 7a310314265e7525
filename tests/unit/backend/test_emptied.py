"""After a transactional test nothing of it is left, and what Django makes for every test is."""

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.test import TransactionTestCase

from controlplane.access.project_models import Project
from tests import emptied

pytestmark = pytest.mark.django_db(transaction=True)


class _Case(TransactionTestCase):
    databases = frozenset({"default"})

    def runTest(self) -> None: ...


KEPT = {"ContentType", "Permission", "Project"}


def left() -> set[str]:
    """Models that have rows."""
    return {model.__name__ for model in apps.get_models() if model._default_manager.exists()}


def write(rows: int = 1) -> None:
    group = Group.objects.create(name="admin")
    group.permissions.add(Permission.objects.order_by("pk")[0])
    User.objects.bulk_create(User(username=f"user-{number}") for number in range(rows))
    User.objects.order_by("pk")[0].groups.add(group)


def test_rows_go_whatever_refers_to_them_and_content_types_stay() -> None:
    types = set(ContentType.objects.values_list("pk", flat=True))
    write()
    emptied.empty(_Case())
    assert left() <= KEPT
    assert set(ContentType.objects.values_list("pk", flat=True)) == types


def test_the_default_project_is_there_again_as_migrations_made_it() -> None:
    Project.objects.filter(name="default").update(visibility="private", quota_gpus=1)
    Project.objects.create(name="vision")
    emptied.empty(_Case())
    assert list(Project.objects.values_list("name", "visibility", "quota_gpus")) == [("default", "open", None)]


def test_much_is_emptied_as_django_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[TransactionTestCase] = []
    monkeypatch.setattr(emptied, "MANY_ROWS", 3)
    monkeypatch.setattr(emptied, "flush_everything", flushed.append)
    write(3)
    emptied.empty(_Case())
    assert flushed == [] and left() <= KEPT
    write(4)
    emptied.empty(case := _Case())
    assert flushed == [case]


def test_numbers_are_not_given_twice() -> None:
    before = User.objects.create(username="ada").pk
    emptied.empty(_Case())
    assert User.objects.create(username="ada").pk > before


@pytest.mark.parametrize("turn", range(2))
def test_each_test_begins_with_nothing(turn: int) -> None:
    assert left() <= KEPT
    write()
