"""The repository keeps its own rules (docs/adr and CONTRIBUTING.md say why)."""

import ast
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from controlplane.protocol.version import VERSION
from tests.house import rules
from tests.house.tree import LIBRARIES, PURE, ROOT, library_files, python_files, read, relative, text_files, tree

# Programs whose stdout is their product; a rank's stdout is its log file.
MAY_PRINT = ("controlplane/cli/", "controlplane/demo/", "trainer/")
# The three packages read the environment in one file each; the CLI installs without the server.
MAY_READ_ENVIRONMENT = (
    "controlplane/config/env.py",
    "agents/config.py",
    "trainer/config.py",
    "controlplane/cli/config.py",
    "controlplane/slurm/environment.py",
    "controlplane/cli/output.py",  # NO_COLOR and TERM, the terminal's own variables
)
# Where the bell is rung; everything else writes a row with a deadline.
MAY_RING_CELERY = (
    "controlplane/runtime/wakeup.py",
    "controlplane/sentinel/fallback.py",  # the canary, which is about Celery itself
)

TextRule = Callable[[str], list[str]]
TreeRule = Callable[[ast.Module], list[str]]


def breaches(rule: TextRule | TreeRule, items: Iterable[tuple[Path, object]]) -> list[str]:
    """`path: what` for each breach."""
    return [f"{relative(path)}: {what}" for path, item in items for what in rule(item)]  # type: ignore[arg-type]


def texts(skip: tuple[str, ...] = ()) -> list[tuple[Path, object]]:
    return [(path, read(path)) for path in text_files() if not relative(path).startswith(skip or ("//",))]


def trees(paths: Iterable[Path], skip: tuple[str, ...] = ()) -> list[tuple[Path, object]]:
    return [(path, tree(path)) for path in paths if not relative(path).startswith(skip or ("//",))]


def test_no_file_is_too_long_to_read() -> None:
    made = (".md", ".gen.ts")
    code = [(path, text) for path, text in texts() if not path.name.endswith(made) and "/data/" not in relative(path)]
    found = breaches(rules.too_long, code)
    assert not found, "\n".join(found)


def test_no_function_is_longer_than_a_screen() -> None:
    found = breaches(rules.long_functions, trees(python_files()))
    assert not found, "\n".join(found)


def test_nothing_is_marked_unfinished() -> None:
    found = breaches(rules.unfinished, texts())
    assert not found, "\n".join(found)


def test_sources_are_ascii() -> None:
    found = breaches(rules.not_ascii, [(path, text) for path, text in texts() if "/data/" not in relative(path)])
    assert not found, "\n".join(found)


def test_libraries_do_not_print() -> None:
    items = [(path, item) for path, item in trees(library_files(), MAY_PRINT) if not _is_program(path)]
    found = breaches(rules.prints, items)
    assert not found, "\n".join(found)


def test_the_command_line_writes_through_one_door() -> None:
    found = breaches(rules.terminal_writes, trees(python_files("controlplane/cli"), ("controlplane/cli/output.py",)))
    assert not found, "\n".join(found)
    door = list(rules.terminal_writes(tree(ROOT / "controlplane/cli/output.py")))
    assert len(door) == 1, door


def test_no_program_is_started_through_a_shell() -> None:
    found = breaches(rules.shells, trees(python_files()))
    assert not found, "\n".join(found)


def test_pure_packages_ask_no_clock() -> None:
    found = breaches(rules.wall_clocks, trees(python_files(*PURE)))
    assert not found, "\n".join(found)


def test_the_environment_is_read_in_one_file_a_package() -> None:
    found = breaches(rules.environment_reads, trees(library_files(), MAY_READ_ENVIRONMENT))
    assert not found, "\n".join(found)


def test_there_are_no_django_signals() -> None:
    found = breaches(rules.django_signals, trees(python_files("controlplane")))
    assert not found, "\n".join(found)


def test_models_do_not_override_save() -> None:
    found = breaches(rules.save_overrides, trees(python_files("controlplane")))
    assert not found, "\n".join(found)


def test_celery_is_rung_in_few_places() -> None:
    found = breaches(rules.task_calls, trees(python_files("controlplane"), MAY_RING_CELERY))
    assert not found, "\n".join(found)


def test_no_coroutine_of_a_socket_or_a_stream_asks_the_database() -> None:
    found = breaches(rules.queries_on_the_loop, trees(python_files("controlplane/live", "controlplane/api")))
    assert not found, "\n".join(found)


def test_no_timer_lives_in_the_broker() -> None:
    found = breaches(rules.timers_in_the_broker, trees(python_files("controlplane")))
    assert not found, "\n".join(found)


def test_every_public_module_says_what_it_is() -> None:
    public = [
        path
        for path in python_files(*LIBRARIES, "benchmarks", "tests/house")
        if not path.stem.startswith("_") and path.name != "apps.py"
    ]
    found = breaches(rules.no_docstring, trees(public))
    assert not found, "\n".join(found)


def test_the_release_has_one_number() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == VERSION


def test_the_changelog_tells_of_the_work_under_way() -> None:
    assert re.search(r"^## (Unreleased|\[?\d+\.\d+\.\d+)", read(ROOT / "CHANGELOG.md"), re.MULTILINE)


def test_tests_weigh_as_much_as_the_code(record_property: Callable[[str, object], None]) -> None:
    """Reported, not judged: a ratio is easily met by bad tests."""
    source = sum(read(path).count("\n") for path in library_files())
    tests = sum(read(path).count("\n") for path in python_files("tests"))
    record_property("test_to_source_lines", f"{tests}/{source} = {tests / max(source, 1):.2f}")
    assert tests > 0


BROKEN_TEXTS: list[tuple[TextRule, str]] = [
    (rules.too_long, "x = 1\n" * 401),
    (rules.unfinished, "x = 1  # TO" + "DO later\n"),
    (rules.not_ascii, "x = 'caf\u00e9'\n"),
]
BROKEN_CODE: list[tuple[TreeRule, str]] = [
    (rules.long_functions, "def f():\n" + "    x = 1\n" * 60),
    (rules.no_docstring, "x = 1\n"),
    (rules.prints, "print('x')\n"),
    (rules.terminal_writes, "print('x')\n"),
    (rules.terminal_writes, "typer.echo('x')\n"),
    (rules.terminal_writes, "sys.stdout.write('x')\n"),
    (rules.terminal_writes, "traceback.print_exc()\n"),
    (rules.shells, "subprocess.run('ls', shell=True)\n"),
    (rules.shells, "os.system('ls')\n"),
    (rules.wall_clocks, "now = time.time()\n"),
    (rules.wall_clocks, "now = datetime.datetime.now(tz=UTC)\n"),
    (rules.environment_reads, "home = os.environ['HOME']\n"),
    (rules.environment_reads, "home = os.environ.get('HOME')\n"),
    (rules.environment_reads, "if 'HOME' in os.environ: pass\n"),
    (rules.django_signals, "from django.db.models.signals import post_save\n"),
    (rules.django_signals, "from django.dispatch import receiver\n"),
    (rules.save_overrides, "class A(models.Model):\n    def save(self): pass\n"),
    (rules.task_calls, "reconcile_job.delay('x')\n"),
    (rules.timers_in_the_broker, "reconcile_job.apply_async(countdown=5)\n"),
    (rules.queries_on_the_loop, "async def f():\n    if x:\n        return await g(Node.objects.get(pk=1))\n"),
    (
        rules.queries_on_the_loop,
        "class A:\n    async def f(self):\n        [row async for row in Node.objects.all()]\n",
    ),
]
CLEAN_CODE: list[tuple[TreeRule, str]] = [
    (rules.long_functions, "def f():\n    '''" + "long\n" * 90 + "'''\n    return 1\n"),
    (rules.prints, "print('x')\nif __name__ == '__main__':\n    main()\n"),
    (rules.environment_reads, "os.environ['X'] = '1'\nchild(env={**os.environ})\nos.environ.setdefault('A', 'b')\n"),
    (rules.save_overrides, "class A:\n    def save(self): pass\n"),
    (rules.shells, "subprocess.run(['ls'])\n"),
    (rules.queries_on_the_loop, "async def f():\n    return await thread(lambda: Node.objects.get(pk=1))\n"),
    (rules.queries_on_the_loop, "def f():\n    return Node.objects.get(pk=1)\n"),
]


@pytest.mark.parametrize(("rule", "text"), BROKEN_TEXTS)
def test_a_text_rule_bites(rule: TextRule, text: str) -> None:
    assert rule(text)


@pytest.mark.parametrize(("rule", "code"), BROKEN_CODE)
def test_a_code_rule_bites(rule: TreeRule, code: str) -> None:
    assert rule(ast.parse(code))


@pytest.mark.parametrize(("rule", "code"), CLEAN_CODE)
def test_a_code_rule_lets_the_lawful_pass(rule: TreeRule, code: str) -> None:
    assert rule(ast.parse(code)) == []


def test_a_long_file_with_a_reason_passes() -> None:
    assert rules.too_long(f'"""{rules.REASON_TO_BE_LONG} it is one table."""\n' + "x = 1\n" * 500) == []


def _is_program(path: Path) -> bool:
    return path.name in ("__main__.py", "main.py") or "/management/commands/" in relative(path)
