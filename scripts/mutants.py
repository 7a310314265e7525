"""Mutation score: `python scripts/mutants.py --sample 150 --seed 1` changes the policy in one place at a time.

A seeded sample of all places (an operator, a comparison, a number, a truth; what is yielded is left out) is changed,
each in a fork of one pytest session, by giving the function other code; then the tests that call that function run, the
quickest first. A change that no test notices has survived: it is printed with its line. Nothing is written. Functions
only: tables and defaults of modules are not changed.
"""

import argparse
import ast
import copy
import gc
import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 120
KILLED, SURVIVED, TOO_LONG = 1, 0, 2
Place = tuple[str, str]
"""A file, and the qualified name of a function or method in it."""
SWAPPED: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


def changed(node: ast.AST) -> ast.AST | None:
    """The node with one thing of its own the other way round; None where there is nothing."""
    other = copy.deepcopy(node)
    match other:
        case ast.Compare() if type(other.ops[0]) in SWAPPED:
            other.ops[0] = SWAPPED[type(other.ops[0])]()
        case ast.BoolOp() | ast.BinOp() if type(other.op) in SWAPPED:
            other.op = SWAPPED[type(other.op)]()
        case ast.UnaryOp(op=ast.Not()):
            return other.operand
        case ast.Constant(value=bool()):
            other.value = not other.value
        case ast.Constant(value=int() | float()):
            other.value = other.value + 1
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            other.func = ast.Name(NAMES[name], ast.Load())
        case ast.IfExp():
            other.body, other.orelse = other.orelse, other.body
        case ast.Expr(value=ast.Yield() | ast.YieldFrom()):
            return ast.copy_location(ast.If(ast.Constant(False), [other], []), node)
        case _:
            return None
    return ast.copy_location(other, node)


@dataclass(frozen=True)
class Mutant:
    """One place that is changed: the how-manieth node of a file, in which function."""

    file: Path
    number: int
    function: str
    line: int

    def tree(self) -> tuple[ast.Module, str]:
        """The whole file with the change, and what became what."""
        tree = ast.parse(self.file.read_text())
        node = list(ast.walk(tree))[self.number]
        other = changed(node)
        assert other is not None
        said = f"{ast.unparse(node)}  ->  {ast.unparse(other)}"

        class Put(ast.NodeTransformer):
            def visit(self, each: ast.AST) -> ast.AST:
                return other if each is node else self.generic_visit(each)

        return ast.fix_missing_locations(Put().visit(tree)), said


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Every place of a file that can be changed."""
    tree = ast.parse(file.read_text())
    owner: dict[int, str] = {}
    passed: set[int] = set()

    def own(node: ast.AST, name: str, *, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef) and not inside:
                passed.update(id(each) for each in ast.walk(child.args))
                own(child, f"{name}.{child.name}" if name else child.name, inside=True)
            elif isinstance(child, ast.ClassDef) and not inside:
                own(child, f"{name}.{child.name}" if name else child.name, inside=False)
            else:
                if inside:
                    owner[id(child)] = name
                own(child, name, inside=inside)

    own(tree, "", inside=False)
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in owner and id(node) not in passed and changed(node) is not None:
            yield Mutant(file, number, owner[id(node)], node.lineno)  # type: ignore[attr-defined]


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """A module's code and all within."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from codes_of(const)


def put(mutant: Mutant) -> bool:
    """Give the function its other code in this process; False where it is nowhere."""
    whole = compile(mutant.tree()[0], str(mutant.file), "exec")
    wanted = next(code for code in codes_of(whole) if code.co_qualname == mutant.function)
    found = [
        each
        for each in gc.get_objects()
        if isinstance(each, FunctionType)
        and each.__code__.co_filename == str(mutant.file)
        and each.__code__.co_qualname == mutant.function
    ]
    for function in found:
        function.__code__ = wanted
    return bool(found)


class Judge:
    """A plugin of pytest that runs each test once, noting what it calls, and then the mutants."""

    def __init__(self, folder: Path, mutants: list[Mutant]) -> None:
        self.folder, self.mutants = str(folder), mutants
        self.tests: dict[Place, list[pytest.Item]] = defaultdict(list)
        self.took_s: dict[pytest.Item, float] = {}
        self.results: dict[Mutant, int] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of pytest's own."""
        for item in session.items:
            self.learn(item)
        self.forget_the_unsteady(session.items)
        for number, mutant in enumerate(self.mutants, start=1):
            tests = sorted(self.tests[str(mutant.file), mutant.function], key=self.took_s.__getitem__)
            self.results[mutant] = self.judged(mutant, tests) if tests else SURVIVED
            if self.results[mutant] == SURVIVED:
                where = f"{mutant.file.relative_to(ROOT)}:{mutant.line} {mutant.function}"
                print(f"\n{number} survived {len(tests)} tests: {where}: {mutant.tree()[1][:160]}", flush=True)
        return True

    def learn(self, item: pytest.Item) -> None:
        """Run it; what it calls of the folder."""
        called: set[Place] = set()

        def note(frame: FrameType, event: str, _argument: object) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(self.folder):
                called.add((frame.f_code.co_filename, frame.f_code.co_qualname.split(".<locals>")[0]))

        started_s = time.monotonic()
        sys.setprofile(note)
        reports = runtestprotocol(item, log=False, nextitem=None)
        sys.setprofile(None)
        self.took_s[item] = time.monotonic() - started_s
        if all(report.outcome != "failed" for report in reports):
            for place in called:
                self.tests[place].append(item)

    def forget_the_unsteady(self, items: list[pytest.Item]) -> None:
        """Tests that fail a second time, in a fork in which nothing was changed, notice nothing."""
        reading, writing = os.pipe()
        if not os.fork():
            failed = [str(number) for number, item in enumerate(items) if _fails(item)]
            os.write(writing, " ".join(failed).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as told:
            unsteady = {items[int(number)] for number in told.read().split()}
        os.wait()
        print(f"\n{len(unsteady)} of {len(items)} tests fail when nothing was changed", flush=True)
        for place, tests in self.tests.items():
            self.tests[place] = [item for item in tests if item not in unsteady]

    def judged(self, mutant: Mutant, tests: list[pytest.Item]) -> int:
        """In a fork: how it ended."""
        pid = os.fork()
        if not pid:
            signal.alarm(LIMIT_S)
            code = KILLED
            try:
                put(mutant)
                code = KILLED if any(_fails(item) for item in tests) else SURVIVED
            finally:
                os._exit(code)
        status = os.waitpid(pid, 0)[1]
        return TOO_LONG if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _fails(item: pytest.Item) -> bool:
    item._initrequest()  # type: ignore[attr-defined]
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


def main() -> int:
    """Print the survivors and the score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("controlplane/policy"))
    parser.add_argument("--sample", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("tests", nargs="*", default=["tests/unit/policy", "tests/properties/policy"])
    options = parser.parse_args()
    folder = (ROOT / options.folder).resolve()
    everything = [each for file in sorted(folder.rglob("*.py")) for each in mutants_of(file)]
    chosen = random.Random(options.seed).sample(everything, min(options.sample, len(everything)))
    judge = Judge(folder, chosen)
    pytest.main(["-q", "-s", "-p", "no:cacheprovider", *options.tests], plugins=[judge])
    ends = list(judge.results.values())
    noticed = sum(end != SURVIVED for end in ends)
    print(f"\n{noticed} of {len(ends)} noticed ({noticed / len(ends):.0%}), of {len(everything)} places")
    return 0


if __name__ == "__main__":
    sys.exit(main())
