"""What is called is told from what is not, also through what imports, tables and methods hide."""

import ast

from tests.house.reach import Reach

SOURCES = {
    "controlplane.door": """
from controlplane import work
from controlplane.work import begin as start
import controlplane.work as other
HANDLERS = {1: work.in_a_table}
def main():
    start()
    other.by_its_module()
    work.Known().method()
    task.delay("controlplane.work:by_its_text")
main()
""",
    "controlplane.work": """
from framework import Foreign, task
def begin():
    within()
    class_of().method
def within(): ...
def class_of(): ...
def in_a_table(): ...
def by_its_module(): ...
def by_its_text(): ...
@task
def taken(): ...
@contextmanager
def plain(): ...
def forgotten():
    by_what_is_forgotten()
def by_what_is_forgotten(): ...
class Known:
    def __init__(self): ...
    def method(self): ...
    def not_asked(self): ...
class Never:
    def method(self): ...
class Theirs(Foreign):
    def they_call(self): ...
HELD = Theirs
""",
}


def test_what_nothing_reaches_is_named() -> None:
    reach = Reach({name: ast.parse(text) for name, text in SOURCES.items()})
    missing = {name.removeprefix("controlplane.work.") for name in set(reach.units) - reach.reached()}
    assert missing == {"forgotten", "by_what_is_forgotten", "plain", "Known.not_asked", "Never", "Never.method"}
