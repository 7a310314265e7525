"""Worlds of the mixed schedule in which a checker finds a fault of old that is put back, and nothing without it.

`benchmarks.old_bugs` says what each fault is; there the seeds look for it, here they are known.
"""

import importlib
from collections.abc import Iterator
from types import FunctionType, ModuleType

import pytest

from benchmarks.old_bugs import BUGS, ROOT
from controlplane.simulator import mixed

FOUND = (
    ("one speed", 910013, "I-evict: healthy r2.1 evicted (node_silent"),
    ("a guess is ended", 910106, "I-evict: healthy r1.1 evicted (unreachable"),
    ("never void", 910006, "I-evict: healthy r0.1 evicted (hang"),
    ("a lease that progress does not renew", 1200000, "I-evict: healthy r2.1 evicted (node_silent"),
    ("a lost connection is a lost node", 1200010, "I-evict: healthy r2.1 evicted (node_silent"),
    ("who is left out counts still", 910001, "I-counts: r0.1 counts, and the view is without it"),
)
each_world = pytest.mark.parametrize(("name", "seed", "words"), FOUND)


def functions(of: ModuleType | dict[str, object], module: str) -> Iterator[tuple[str, FunctionType]]:
    """Those of the module itself, by name."""
    names = of if isinstance(of, dict) else vars(of)
    return (
        (name, each) for name, each in names.items() if isinstance(each, FunctionType) and each.__module__ == module
    )


def put_back(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Whoever has imported a function of the module runs the old one."""
    bug = next(each for each in BUGS if each.name == name)
    module = importlib.import_module(bug.path.removesuffix(".py").replace("/", "."))
    text = (ROOT / bug.path).read_text()
    assert text.count(bug.old) == 1
    names: dict[str, object] = {"__name__": module.__name__}
    exec(compile(text.replace(bug.old, bug.new), bug.path, "exec"), names)
    old = dict(functions(names, module.__name__))
    for each, function in functions(module, module.__name__):
        monkeypatch.setattr(function, "__code__", old[each].__code__)


@each_world
def test_the_source_as_it_stands_passes(name: str, seed: int, words: str) -> None:
    assert mixed.run(seed).violations == ()


@each_world
def test_with_the_fault_put_back_a_checker_speaks(
    monkeypatch: pytest.MonkeyPatch, name: str, seed: int, words: str
) -> None:
    put_back(monkeypatch, name)
    assert words in mixed.run(seed).violations[0]
