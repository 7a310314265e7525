"""Which functions of the libraries something reaches: what a detector that nothing calls is found by.

Static, and lenient where it cannot know: every module counts as imported; what a decorator takes (a task, a route, a
command) or a framework's class has counts as called; a method, where anything reached has an attribute of its name.
A function of a module is reached only by its own name, as it is imported.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.house.tree import library_files, relative, tree

# They leave a function as uncalled as it was.
PLAIN = frozenset(
    {"abstractmethod", "cache", "cached_property", "classmethod", "contextmanager", "asynccontextmanager", "lru_cache",
     "overload", "property", "setter", "staticmethod", "wraps"}
)  # fmt: skip
# Django finds what these modules have by its base.
FOUND = re.compile(r"\.management\.commands\.|\.apps$|\.models$|\.middleware$")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(kw_only=True)
class Unit:
    """Code that runs together: a module's own statements, a function with what is nested in it, a class's body.
    `module`: where it stands; `within`: the class of a method."""

    name: str
    module: str
    nodes: list[ast.AST] = field(default_factory=list)
    within: str = ""
    foreign: bool = False


def module_of(path: Path) -> str:
    return relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Reach:
    """Of these files; all of them, read once, are what `reached` answers for."""

    def __init__(self, sources: dict[str, ast.Module]) -> None:
        self.units: dict[str, Unit] = {}
        self.imported: dict[str, dict[str, str]] = {name: dict(_imports(name, code)) for name, code in sources.items()}
        self._methods: dict[str, list[str]] = {}
        self._classes: dict[str, list[str]] = {}
        self._roots: list[str] = []
        for name, code in sources.items():
            self._take(name, code)

    def reached(self) -> set[str]:
        """Names of units, as "controlplane.recovery.speed.score_if_due"."""
        found, waiting, called = set[str](), list(self._roots), set[str]()
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            found.add(name)
            unit = self.units[name]
            waiting += self._of_class(unit, called)
            for word in (word for node in unit.nodes for word in self.named(node, unit.module)):
                if word in self.units:
                    waiting.append(word)
                elif word.startswith(".") and word[1:] not in called:
                    called.add(word[1:])
                    waiting += [each for each in self._methods.get(word[1:], ()) if self.units[each].within in found]
        return found

    def named(self, node: ast.AST, module: str) -> Iterator[str]:
        """Units that code of this module names, and ".name" of each other attribute."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                yield self._resolved(module, part.id)
            elif isinstance(part, ast.Attribute):
                yield self._resolved(module, *path) if (path := _path(part)) else ""
                yield f".{part.attr}"
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value.replace(":", ".")

    def one(self, node: ast.expr, module: str) -> str:
        """The unit that this name or path of names is itself; "" where it is none, or something of a class."""
        path = _path(node)
        found = self._resolved(module, *path) if path else ""
        return found if found in self.units and found.rpartition(".")[2] == (self._alias(module, path)) else ""

    def _alias(self, module: str, path: list[str]) -> str:
        """The last name of the path, as it is called where it comes from."""
        return path[-1] if len(path) > 1 else self.imported.get(module, {}).get(path[0], path[0]).rpartition(".")[2]

    def _resolved(self, module: str, name: str, *rest: str) -> str:
        """The unit that this name is in this module, through what it imports."""
        if f"{module}.{name}" in self.units and name not in self.imported.get(module, {}):
            return f"{module}.{name}"
        origin = self.imported.get(module, {}).get(name, "")
        if not origin or origin == f"{module}.{name}":
            return ""
        if origin in self.units and origin not in self.imported:
            return origin
        if origin in self.imported:
            return self._resolved(origin, *rest) if rest else ""
        above, _, last = origin.rpartition(".")
        return self._resolved(above, last, *rest) if above in self.imported else ""

    def _of_class(self, unit: Unit, called: set[str]) -> Iterator[str]:
        """Methods that are called once their class is reached."""
        for name in self._classes.get(unit.name, ()):
            last = name.rpartition(".")[2]
            if unit.foreign or last in called or last.startswith("__"):
                yield name

    def _take(self, module: str, code: ast.Module) -> None:
        own = Unit(name=module, module=module)
        self.units[module] = own
        self._roots.append(module)
        self._statements(own, code.body, "")

    def _statements(self, owner: Unit, body: list[ast.stmt], within: str) -> None:
        for node in body:
            if isinstance(node, Function):
                self._function(owner, node, within)
            elif isinstance(node, ast.ClassDef):
                self._class(owner, node)
            elif isinstance(node, ast.If | ast.Try | ast.With) and not within:
                self._statements(owner, [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt)], "")
                owner.nodes += [part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.stmt)]
            elif not isinstance(node, ast.Import | ast.ImportFrom):
                owner.nodes.append(node)

    def _function(self, owner: Unit, node: Function, within: str) -> None:
        name = f"{within or owner.module}.{node.name}"
        self.units[name] = Unit(name=name, module=owner.module, nodes=[node], within=within)
        if within:
            self._methods.setdefault(node.name, []).append(name)
            self._classes.setdefault(within, []).append(name)
        owner.nodes += [*node.decorator_list, *node.args.defaults]
        takes = {_last(each) for each in node.decorator_list} - PLAIN
        if takes and not within:
            self._roots.append(name)

    def _class(self, owner: Unit, node: ast.ClassDef) -> None:
        name = f"{owner.module}.{node.name}"
        bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
        foreign = any(not self._ours(owner.module, base) for base in bases)
        unit = Unit(name=name, module=owner.module, nodes=list(node.bases), foreign=foreign)
        self.units[name] = unit
        self._statements(unit, node.body, name)
        owner.nodes += node.decorator_list
        if foreign and FOUND.search(owner.module):
            self._roots.append(name)

    def _ours(self, module: str, base: str) -> bool:
        return base == "object" or self.imported[module].get(base.partition(".")[0], f"{module}.").startswith(
            ("controlplane.", "agents.", "trainer.")
        )


def _path(node: ast.expr) -> list[str]:
    """["a", "b"] of `a.b`; empty where it begins with anything but a name."""
    if isinstance(node, ast.Name):
        return [node.id]
    above = _path(node.value) if isinstance(node, ast.Attribute) else []
    return [*above, node.attr] if above and isinstance(node, ast.Attribute) else []


def _last(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).rpartition(".")[2]


def _imports(module: str, code: ast.Module) -> Iterator[tuple[str, str]]:
    """What a name of the module was elsewhere, also where a function imports it late."""
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], alias.name if alias.asname else ""


@cache
def of_the_libraries() -> Reach:
    return Reach({module_of(path): tree(path) for path in library_files()})
