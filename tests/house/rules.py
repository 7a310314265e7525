"""The tidy rules: each a pure function from one file to the breaches in it.

Called by test_tidy.py on the whole repository, and there on small broken texts too, so
that a rule which no longer bites fails a test. A rule never changes a file.
"""

import ast
import re
from collections.abc import Iterator

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
REASON_TO_BE_LONG = "Longer than 400 lines because"
REASON_WITHIN_LINES = 15

# Spelled in halves so that this file does not breach its own rule.
_UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b")
_WALL_CLOCKS = frozenset(
    {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.datetime.now", "date.today"}
)
_TASK_CALLS = frozenset({"delay", "apply_async", "send_task"})
_TERMINAL_WRITES = frozenset({"print", "pprint", "sys.excepthook"})
_TERMINAL_ENDINGS = (".echo", ".secho", ".pprint", ".writelines", ".print_exception", ".print_exc",
                     "stdout.write", "stderr.write", "out.write", "buffer.write", "os.write", ".rprint")  # fmt: skip
_SIGNAL_MODULES = ("django.dispatch", "django.db.models.signals", "django.core.signals", "django.contrib.auth.signals")


def too_long(text: str) -> list[str]:
    """A file past the limit must say why in its first lines."""
    lines = text.splitlines()
    if len(lines) <= MAX_FILE_LINES or REASON_TO_BE_LONG in "\n".join(lines[:REASON_WITHIN_LINES]):
        return []
    return [f"{len(lines)} lines, the limit is {MAX_FILE_LINES}: split it or say '{REASON_TO_BE_LONG} ...' at its top"]


def unfinished(text: str) -> list[str]:
    """No marks of unfinished work: an issue or a row of docs/requirements.md is the place."""
    return [
        f"line {number}: unfinished work"
        for number, line in enumerate(text.splitlines(), 1)
        if _UNFINISHED.search(line)
    ]


def not_ascii(text: str) -> list[str]:
    """Plain ASCII, so that no two characters look alike."""
    if text.isascii():
        return []
    lines = [number for number, line in enumerate(text.splitlines(), 1) if not line.isascii()]
    return [f"line {number}: not ASCII" for number in lines]


def long_functions(module: ast.Module) -> list[str]:
    """Functions fit on one screen. The docstring is not counted: it may be the algorithm."""
    found = []
    for node in ast.walk(module):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1 - _docstring_lines(node)
        if lines > MAX_FUNCTION_LINES:
            found.append(f"line {node.lineno}: {node.name} has {lines} lines, the limit is {MAX_FUNCTION_LINES}")
    return found


def no_docstring(module: ast.Module) -> list[str]:
    """A module with code says what it is, who calls it, what it never does."""
    if not module.body or ast.get_docstring(module):
        return []
    return ["no module docstring"]


def prints(module: ast.Module) -> list[str]:
    """Libraries log; commands print. A module that runs as a command may print."""
    if is_command(module):
        return []
    return [f"line {call.lineno}: print" for call in _calls(module) if dotted(call.func) == "print"]


def terminal_writes(module: ast.Module) -> list[str]:
    """The command line writes through one function (`controlplane.cli.output.put`), which escapes
    what a terminal would obey. A prompt of the person's own words is no writing."""
    return [
        f"line {call.lineno}: {dotted(call.func)}"
        for call in _calls(module)
        if dotted(call.func) in _TERMINAL_WRITES or dotted(call.func).endswith(_TERMINAL_ENDINGS)
    ]


def shells(module: ast.Module) -> list[str]:
    """Programs start from an argument list, never through a shell."""
    found = [
        f"line {call.lineno}: shell=True"
        for call in _calls(module)
        for keyword in call.keywords
        if keyword.arg == "shell" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
    ]
    return found + [
        f"line {call.lineno}: os.system" for call in _calls(module) if dotted(call.func) in ("os.system", "os.popen")
    ]


def wall_clocks(module: ast.Module) -> list[str]:
    """Pure code is told the time."""
    return [f"line {call.lineno}: {dotted(call.func)}" for call in _calls(module) if dotted(call.func) in _WALL_CLOCKS]


def environment_reads(module: ast.Module) -> list[str]:
    """One value of the environment is looked at. Handing the whole of it to a child
    process, or setting a value for a library, is no reading."""
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and dotted(node.func) in ("os.getenv", "os.environ.get", "environ.get", "getenv"):
            found.append(f"line {node.lineno}: {dotted(node.func)}")
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Load)
            and dotted(node.value) in ("os.environ", "environ")
        ):
            found.append(f"line {node.lineno}: os.environ[...]")
        if isinstance(node, ast.Compare) and any(dotted(side) == "os.environ" for side in node.comparators):
            found.append(f"line {node.lineno}: in os.environ")
    return found


def django_signals(module: ast.Module) -> list[str]:
    """No hidden back-edges: a change calls what follows from it, or publishes an event."""
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_SIGNAL_MODULES):
            found.append(f"line {node.lineno}: import of {node.module}")
        if isinstance(node, ast.Import) and any(alias.name.startswith(_SIGNAL_MODULES) for alias in node.names):
            found.append(f"line {node.lineno}: import of Django signals")
    return found


def save_overrides(module: ast.Module) -> list[str]:
    """Rows are plain; services write them."""
    return [
        f"line {item.lineno}: {node.name}.{item.name} is overridden"
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef) and any(dotted(base).endswith("Model") for base in node.bases)
        for item in node.body
        if isinstance(item, ast.FunctionDef) and item.name in ("save", "delete")
    ]


def task_calls(module: ast.Module) -> list[str]:
    """Celery is only the bell; it is rung in few places."""
    return [
        f"line {call.lineno}: {dotted(call.func)}"
        for call in _calls(module)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _TASK_CALLS
    ]


def timers_in_the_broker(module: ast.Module) -> list[str]:
    """No ETA or countdown: a deadline is an indexed column (tasks past the broker's
    visibility timeout run twice at once)."""
    return [
        f"line {call.lineno}: {keyword.arg}"
        for call in _calls(module)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _TASK_CALLS
        for keyword in call.keywords
        if keyword.arg in ("eta", "countdown")
    ]


def queries_on_the_loop(module: ast.Module) -> list[str]:
    """No ORM in a coroutine: it would hold up every socket of the process. What is defined inside
    one to run in a thread (a function, a lambda) is another thing."""
    found = []
    for coroutine in (node for node in ast.walk(module) if isinstance(node, ast.AsyncFunctionDef)):
        waiting = list(coroutine.body)
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.FunctionDef | ast.Lambda | ast.AsyncFunctionDef):
                continue
            if isinstance(node, ast.Attribute) and node.attr == "objects":
                found.append(f"line {node.lineno}: {dotted(node)} in `async def {coroutine.name}`")
            waiting.extend(ast.iter_child_nodes(node))  # type: ignore[arg-type]
    return found


def is_command(module: ast.Module) -> bool:
    """True for a module with an `if __name__ == "__main__"` block."""
    return any(
        isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and dotted(node.test.left) == "__name__"
        for node in module.body
    )


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a chain of attributes; the last name only where the chain starts in a call."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        front = dotted(node.value)
        return f"{front}.{node.attr}" if front else node.attr
    return ""


def _calls(module: ast.Module) -> Iterator[ast.Call]:
    return (node for node in ast.walk(module) if isinstance(node, ast.Call))


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    if not (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    ):
        return 0
    return (first.end_lineno or first.lineno) - first.lineno + 1


_MAKES = frozenset({"create", "bulk_create", "bulk_update", "update_or_create", "get_or_create"})


def orm_writes(module: ast.Module) -> list[str]:
    """Calls that write rows: through a manager, a query or a row, or a move by the state tables."""
    found = []
    for node in ast.walk(module):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, on = node.func.attr, ast.unparse(node.func.value)
        made = name in _MAKES and "objects" in on
        # A dict's or a digest's `update` takes its argument by position.
        changed = name == "update" and not node.args and bool(node.keywords)
        if made or changed or name in ("save", "delete") or (on, name) in (("guard", "move"), ("bulk", "insert")):
            found.append(f"line {node.lineno}: {on}.{name}")
    return found
