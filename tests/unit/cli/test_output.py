"""Rows become text that people and pipes can use."""

import io
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from controlplane.cli.columns import JOBS, NODES, REFUSED
from controlplane.cli.exits import MEANINGS, Exit
from controlplane.cli.main import EPILOG
from controlplane.cli.output import Column, Format, Screen, ServerClock, age, emit_rows, number, percent, span, text

COLUMNS = (
    Column(title="NAME", show=text("name")),
    Column(title="STATE", show=text("state"), state=True),
    Column(title="ID", show=text("id"), wide=True),
)
ROWS = [{"name": "a", "state": "running", "id": "job_1"}, {"name": "longer", "state": None, "id": "job_2"}]


def shown(form: Format, *, colour: bool = False, width: int | None = None) -> str:
    out = io.StringIO()
    emit_rows(ROWS, COLUMNS, form, Screen(out, colour, width), name="name")
    return out.getvalue()


def test_a_table_is_aligned_and_says_when_something_is_missing() -> None:
    assert shown(Format.TABLE) == "NAME    STATE\na       running\nlonger  -\n"


def test_a_finding_of_step_0_is_shown_with_its_step_and_what_it_does_not_say_with_a_dash() -> None:
    shown_by = {column.title: column.show for column in REFUSED}
    row = {"evidence": {"step": 0, "check": ""}}
    assert [shown_by[title](row) for title in ("STEP", "CHECK", "DIAGNOSIS")] == ["0", "-", "-"]


def test_a_job_and_a_node_that_are_not_heard_say_how_long_and_what_of_their_ranks() -> None:
    since = (datetime.now(UTC) - timedelta(seconds=21.5)).isoformat()
    told = {
        "job_id": "job_1",
        "node_id": "n",
        "node_name": "node-3",
        "since": since,
        "commits": True,
        "left_out": False,
    }
    out = {column.title: column.show for column in JOBS}["NOT-HEARD"]
    here = {column.title: column.show for column in NODES}["NOT-HEARD"]
    assert out({"owner": "ana", "not_heard": [told]}) == "node-3 21s: still commits"
    assert out({"owner": "ana", "not_heard": [told | {"commits": False}]}) == "node-3 21s: no step since"
    assert here({"not_heard": [told, told | {"job_id": "job_2"}]}) == "21s: still commits"
    assert here({"not_heard": [told | {"commits": False, "left_out": True}]}) == "21s: left out for now"
    assert (out({"owner": "ana", "not_heard": []}), here({})) == ("-", "-")


def test_wide_shows_every_column() -> None:
    assert shown(Format.WIDE).splitlines()[1] == "a       running  job_1"


def test_the_state_is_a_word_with_or_without_colour() -> None:
    painted = shown(Format.TABLE, colour=True)
    assert "\x1b[32mrunning\x1b[0m" in painted
    assert painted.replace("\x1b[32m", "").replace("\x1b[0m", "") == shown(Format.TABLE)


def test_a_narrow_terminal_cuts_lines_and_marks_the_cut() -> None:
    lines = shown(Format.WIDE, width=12).splitlines()
    assert lines == ["NAME    STA>", "a       run>", "longer  -  >"]


@pytest.mark.parametrize(
    ("seconds", "shown_as"),
    [(0.04, "0.0s"), (4.25, "4.2s"), (59.9, "59s"), (190, "3m10s"), (18720, "5h12m"), (273600, "3d4h"), (-5, "-5.0s")],
)
def test_durations_for_people(seconds: float, shown_as: str) -> None:
    assert span(seconds) == shown_as


def test_missing_readings_are_never_zero() -> None:
    for show in (text("x"), number("x", 2), percent("x"), age("x")):
        assert show({"x": None}) == "-"
        assert show({}) == "-"


def test_ages_are_told_by_the_servers_clock_where_it_differs() -> None:
    clock = ServerClock()
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=1)
    clock.note(format_datetime(datetime.now(UTC) + timedelta(minutes=5), usegmt=True))
    assert clock.now() - datetime.now(UTC) > timedelta(minutes=4, seconds=50)
    clock.note("no date at all")
    assert clock.now() - datetime.now(UTC) > timedelta(minutes=4, seconds=50), "what is no date changes nothing"
    clock.note(format_datetime(datetime.now(UTC), usegmt=True))
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=1)


def test_a_job_is_done_once_every_step_is_and_one_without_a_checkpoint_says_so() -> None:
    cell = {column.title: column.show for column in JOBS}
    assert [cell["DONE"]({"progress": done}) for done in (0.9996, 1.0, 1.01)] == ["99.9%", "100.0%", "101.0%"]
    row = {"checkpoint_age_s": 21600.0, "last_checkpoint_step": None}
    assert cell["CHECKPOINT-AGE"](row) == "none (6h0m)"
    assert cell["CHECKPOINT-AGE"](row | {"last_checkpoint_step": 0}) == "6h0m"
    replicas = {"replicas_active": 0, "replicas_total": 3, "replicas_asked": 3}
    assert cell["REPLICAS"](replicas | {"finished_at": None}) == "0/3"
    assert cell["REPLICAS"](replicas | {"finished_at": "2026-01-01T00:00:00Z"}) == "3", "none is there any more"


def test_ages_count_from_the_instant() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    show = age("at", lambda: moment + timedelta(minutes=3))
    assert show({"at": "2026-01-01T00:00:00.000000Z"}) == "3m0s"


def test_every_exit_code_is_documented() -> None:
    assert set(MEANINGS) == set(Exit)
    assert all(f"{code.value} {meaning}" in EPILOG for code, meaning in MEANINGS.items())


def test_help_loads_nothing_heavy() -> None:
    """The budget is import work, which a loaded machine does not change."""
    program = (
        "import sys; from controlplane.cli.main import main; main(['--help']); "
        "heavy = {'httpx', 'django', 'rich', 'yaml', 'stamina', 'torch', 'asyncio', 'controlplane.protocol.rest'} "
        "& set(sys.modules); "
        "sys.stderr.write(', '.join(sorted(heavy)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
