"""What a server knows of Slurm, as rows: facts of recorded answers, no news, two sources before a pilot is gone, and
intents that are carried out until Slurm itself says that they are. `squeue` and `scontrol` are programs in PATH that
play answers back."""

import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controlplane.engines import intents, poll, views
from controlplane.engines.models import EngineNode, EnginePoll, Intent, PoolElement
from controlplane.engines.slurm.driver import Slurm
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Rank
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import ago, now
from controlplane.runtime.models import Event
from tests.integration.backend.builders import make_fleet, make_job

pytestmark = pytest.mark.django_db
HEADER = "JOBID|ARRAY_JOB_ID|ARRAY_TASK_ID|STATE|USER|START_TIME|END_TIME|NODELIST|COMMENT|REASON\n"
OURS = "holdfast:server=http://127.0.0.1:8420;grace_s=45"
NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUTot=2 Gres=gpu:2 NodeAddr=10.1.0.3 NodeHostName={name}"
    " Version=22.05.8 OS=Linux 6.1.0 #1 SMP  RealMemory=1000 State={state} ThreadsPerCore=1 Weight=1 Owner=N/A"
    " Partitions=main  CapWatts=n/a ExtSensorsTemp=n/s{why}\n"
)
PLAYER = """#!/bin/sh
echo "$(basename $0) $*" >> {folder}/asked
[ -f {folder}/hangs ] && sleep 30
case "$*" in *update*) echo "$*" >> {folder}/updates; cat {folder}/update >&2 2>/dev/null && exit 1; exit 0;; esac
last=""; for last in "$@"; do :; done
case "$(basename $0) $last" in
  "scancel "*) echo "cancel $*" >> {folder}/updates ;;
  "scontrol 9") echo "JobId=1 ArrayTaskThrottle=$(cat {folder}/throttle) JobName=x" ;;
  "scontrol node") cat {folder}/nodes ;;
  "scontrol "*) grep "^NodeName=$last " {folder}/nodes ;;
  *) cat {folder}/pilots ;;
esac
"""


def line(name: str, state: str = "IDLE", why: str = "") -> str:
    return NODE.format(name=name, state=state, why=f" Reason={why}" if why else "")


def pilot(index: int, state: str = "RUNNING", node: str = "", why: str = "None", comment: str = OURS) -> str:
    ends = "2026-12-02T10:00:00" if node else "N/A"
    return f"{10 + index}|9|{index}|{state}|ada|2026-11-30T10:00:00|{ends}|{node}|{comment}|{why}\n"


class Player:
    """`nodes` and `pilots` are what the programs answer from now on; None: they fail. `updates`: what Slurm was
    asked to change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("squeue", "scontrol", "scancel"):
            path = folder / name
            path.write_text(PLAYER.format(folder=folder))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def answers(self, nodes: str | None, pilots: str | None, **driver: Any) -> EnginePoll:
        for name, text in (("nodes", nodes), ("pilots", pilots)):
            (self.folder / name).unlink(missing_ok=True)
            if text is not None:
                (self.folder / name).write_text(text)
        EnginePoll.objects.update(due_at=ago(1.0))
        Intent.objects.update(due_at=ago(1.0))
        assert poll.poll(Slurm(**{"timeout_s": 5.0} | driver))
        return EnginePoll.objects.get(pk="slurm")

    @property
    def updates(self) -> list[str]:
        path = self.folder / "updates"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Player:
    settings.ENGINE = "slurm"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Player(tmp_path)


def test_facts_are_written_of_nodes_that_both_know_and_of_each_pilot(slurm: Player) -> None:
    make_fleet(2)
    drained = line("N_2", "IDLE+DRAIN", "fan is loud [root@2026-11-30T09:00:00]").replace("N_2", "n2")
    text = HEADER + pilot(1, node="n1") + pilot(2, "PENDING", why="Resources") + pilot(3, "PENDING", why="JobHeldAdmin")
    polled = slurm.answers(line("n1", "ALLOCATED") + drained + line("n9"), text)
    assert (polled.error, polled.failures) == ("", 0) and polled.answered_at is not None
    rows = {row.name: row for row in EngineNode.objects.all()}
    assert {name: (row.states, row.reason, row.reason_by, row.piloted) for name, row in rows.items()} == {
        "n1": ("ALLOCATED", "", "", True), "n2": ("DRAIN+IDLE", "fan is loud", "root", False),
    }  # fmt: skip
    assert rows["n2"].reason_at == datetime(2026, 11, 30, 9, tzinfo=UTC)
    (pool,) = views.engines()[0]["pools"]
    assert {key: pool[key] for key in ("id", "owner", "in_use", "idle", "cold", "held", "other")} == {
        "id": "9", "owner": "ada", "in_use": 0, "idle": 1, "cold": 1, "held": 1, "other": 0,
    }  # fmt: skip
    held, cold, idle = pool["elements"]
    assert (held["waits"], cold["waits"], idle["waits"]) == ("JobHeldAdmin", "Resources", "")
    assert (idle["allocation"], idle["node_name"], idle["grace_s"]) == ("9_1", "n1", 45)
    assert idle["ends_at"] == "2026-12-02T10:00:00.000000Z"


def test_what_somebody_drained_differs_is_told_once_and_is_left_alone(slurm: Player) -> None:
    make_fleet(1)
    for _ in range(2):
        slurm.answers(line("n1", "IDLE+DRAIN", "fan [root@2026-11-30T09:00:00]"), HEADER)
    shown = views.of_node("node_1")
    assert shown is not None and shown["drained"] and not shown["ours"]
    assert shown["differs"] == (
        "Slurm gives it no job (DRAIN+IDLE: fan, root, 2026-11-30 09:00:00 UTC); Holdfast counts it as ready."
        " Holdfast leaves that alone: who drained it gives it back."
    )
    assert Event.objects.filter(kind="node.engine").count() == 1
    fleet.cordon("node_1", reason="a new fan", actor="ada")
    slurm.answers(line("n1", "IDLE+DRAIN", "fan [root@2026-11-30T09:00:00]"), HEADER)
    fleet.uncordon("node_1", reason="the fan is new", actor="ada")
    slurm.answers(line("n1", "IDLE+DRAIN", "fan [root@2026-11-30T09:00:00]"), HEADER)
    assert not slurm.updates and not Intent.objects.exists()


@pytest.mark.parametrize(
    ("nodes", "pilots", "why"),
    [
        ("", "", "names no node; `squeue` gives no whole answer"),
        (None, None, "scontrol failed"),
        ("<html>\n", "JOBID|STATE\n1|RUNNING\n", "names no node; `squeue` gives no whole answer"),
        ("\0\xff\n", HEADER.rstrip("\n"), "names no node; `squeue` gives no whole answer"),
    ],
)
def test_an_empty_a_failed_and_a_garbled_answer_change_nothing_but_the_error(
    slurm: Player, nodes: str | None, pilots: str | None, why: str
) -> None:
    make_fleet(1)
    slurm.answers(line("n1", "ALLOCATED"), HEADER + pilot(1, node="n1"))
    before = [list(table.objects.values()) for table in (EngineNode, PoolElement, Intent)]
    for failures in (1, 2, 3):
        polled = slurm.answers(nodes, pilots)
        assert why in polled.error and polled.failures == failures
    assert [list(table.objects.values()) for table in (EngineNode, PoolElement, Intent)] == before
    assert polled.due_at > now() + timedelta(seconds=200), "it is asked less often"


def test_a_program_that_hangs_is_left_after_its_timeout(slurm: Player) -> None:
    make_fleet(1)
    slurm.answers(line("n1"), HEADER)
    (slurm.folder / "hangs").touch()
    began = now()
    polled = slurm.answers(line("n1"), HEADER, timeout_s=0.3)
    assert "did not answer within 0.3 s" in polled.error and now() - began < timedelta(seconds=10)
    assert EngineNode.objects.count() == 1


def test_a_pilot_is_gone_only_when_a_second_source_says_so(slurm: Player) -> None:
    make_fleet(2)
    both = HEADER + pilot(1, node="n1") + pilot(2, "PENDING", why="Resources")
    slurm.answers(line("n1", "ALLOCATED") + line("n2"), both)
    for _ in range(3):
        slurm.answers(line("n1", "ALLOCATED") + line("n2"), HEADER)
        assert PoolElement.objects.filter(index=1).exists(), "its agent is connected, and Slurm has the node in use"
    assert not PoolElement.objects.filter(index=2).exists(), "one that waited: two answers in a row"
    slurm.answers(line("n1") + line("n2"), HEADER)
    assert not PoolElement.objects.exists(), "Slurm says that the node is idle"
    slurm.answers(line("n1", "ALLOCATED") + line("n2"), both)
    Node.objects.filter(pk="node_1").update(connected=False)
    slurm.answers(None, HEADER)
    assert not PoolElement.objects.filter(index=1).exists(), "its agent's link is down"
    shown = views.of_node("node_1")
    assert shown is not None and shown["piloted"] and shown["allocation"] is None


def test_pilots_of_another_server_are_left_out(slurm: Player) -> None:
    make_fleet(2)
    theirs = pilot(2, node="n2", comment="holdfast:server=https://other;grace_s=45")
    slurm.answers(line("n1") + line("n2"), HEADER + pilot(1, node="n1") + theirs, server="http://127.0.0.1:8420/")
    assert [row.index for row in PoolElement.objects.all()] == [1]


def test_a_cordoned_node_is_drained_once_nothing_runs_on_it_and_given_back(slurm: Player) -> None:
    make_fleet(1)
    fleet.cordon("node_1", reason="memory errors", actor="ada")
    slurm.answers(line("n1", "ALLOCATED"), HEADER + pilot(1, node="n1"))
    (intent,) = Intent.objects.all()
    assert (intent.kind, intent.state, intent.tries) == ("mark_bad", "sent", 1)
    (asked,) = slurm.updates
    assert asked.startswith("update nodename=n1 state=drain reason=holdfast: cordoned. ") and intent.id in asked
    why = asked.partition("reason=")[2]
    drained = line("n1", "ALLOCATED+DRAIN", f"{why} [holdfast@2026-11-30T09:00:00]")
    for _ in range(2):
        slurm.answers(drained, HEADER + pilot(1, node="n1"))
    intent.refresh_from_db()
    assert intent.state == "done" and len(slurm.updates) == 1, "one effect"
    fleet.uncordon("node_1", reason="new memory", actor="ada")
    slurm.answers(drained, HEADER)
    assert slurm.updates[1:] == ["update nodename=n1 state=undrain"]
    slurm.answers(line("n1"), HEADER)
    assert sorted(Intent.objects.values_list("kind", "state")) == [("clear", "done"), ("mark_bad", "done")]


def test_a_node_whose_key_was_shut_out_is_drained(slurm: Player) -> None:
    make_fleet(1)
    text = HEADER + pilot(1, node="n1")
    slurm.answers(line("n1"), text)
    assert not slurm.updates
    Node.objects.update(revoked_at=now())
    slurm.answers(line("n1"), text)
    assert "revoked" in slurm.updates[-1]


def test_an_intent_that_fails_is_tried_again_later_each_time_and_is_void_when_it_is_not_wanted(slurm: Player) -> None:
    make_fleet(1)
    fleet.cordon("node_1", reason="memory errors", actor="ada")
    (slurm.folder / "update").write_text("slurm_update error: Invalid user id\n")
    waits = []
    for tries in (1, 2, 3):
        slurm.answers(line("n1"), HEADER)
        (intent,) = Intent.objects.all()
        assert (intent.state, intent.tries) == ("wanted", tries) and "Invalid user id" in intent.detail
        waits.append(intent.due_at - now())
    assert waits[0] < waits[1] < waits[2]
    fleet.uncordon("node_1", reason="it was the cable", actor="ada")
    slurm.answers(line("n1"), HEADER)
    assert Intent.objects.get().state == "void" and len(slurm.updates) == 3


def test_a_drain_that_somebody_else_sets_in_between_is_not_replaced(slurm: Player) -> None:
    make_fleet(1)
    fleet.cordon("node_1", reason="memory errors", actor="ada")
    # All nodes are asked for in one question, this one in another right before the update.
    player = (slurm.folder / "scontrol").read_text()
    (slurm.folder / "n1").write_text(line("n1", "IDLE+DRAIN", "fan [root@2026-11-30T09:00:00]"))
    (slurm.folder / "scontrol").write_text(player.replace('grep "^NodeName=$last " ', "cat ").replace(
        f"cat {slurm.folder}/nodes ;;\n  *)", f"cat {slurm.folder}/n1 ;;\n  *)"
    ))  # fmt: skip
    slurm.answers(line("n1"), HEADER)
    assert not slurm.updates and Intent.objects.get().detail == "it was drained already"


def test_a_look_begins_once_however_many_want_to(slurm: Player) -> None:
    slurm.answers(line("n1"), HEADER)
    asked: Callable[[], int] = lambda: len((slurm.folder / "asked").read_text().splitlines())  # noqa: E731
    before = asked()
    assert not poll.poll(Slurm(timeout_s=5.0)) and asked() == before, "it is not due"


def test_ranks_on_a_cordoned_node_keep_it_undrained(slurm: Player) -> None:
    make_fleet(4)
    job = make_job()
    reconcile_job(job.id)
    used = Node.objects.filter(ranks__released_at=None, ranks__isnull=False).distinct().first()
    assert used is not None
    fleet.cordon(used.id, reason="memory errors", actor="ada")
    slurm.answers(line(used.name, "ALLOCATED"), HEADER)
    assert not Intent.objects.exists() and not slurm.updates
    shown = views.of_node(used.id)
    assert shown is not None and shown["differs"].endswith("It is drained in Slurm once nothing runs on it.")


def test_a_pool_that_shrinks_gives_spare_pilots_back_and_keeps_those_with_ranks(slurm: Player) -> None:
    make_fleet(6)
    job = make_job()
    reconcile_job(job.id)
    used = set(Rank.objects.filter(released_at=None).values_list("node__name", flat=True))
    kept = set(Device.objects.filter(reservation__isnull=False).values_list("node__name", flat=True))
    spare = {f"n{number}" for number in range(1, 7)} - used - kept
    assert used and spare
    nodes = "".join(line(f"n{number}", "ALLOCATED") for number in range(1, 7))
    listed = HEADER + "".join(pilot(number, node=f"n{number}") for number in range(1, 7))
    slurm.answers(nodes, listed)
    (slurm.folder / "throttle").write_text("1")
    intent = intents.resize("slurm", "9", 1, reason="a quiet week", actor="user:ada")
    slurm.answers(nodes, listed)
    asked, cancelled = slurm.updates
    assert asked == "update jobid=9 arraytaskthrottle=1"
    assert {name.replace("9_", "n") for name in cancelled.split()[1:]} == spare
    intent.refresh_from_db()
    assert intent.state == "done" and "given back" in intent.detail


def test_a_resize_that_slurm_does_not_confirm_is_tried_again_and_a_newer_one_replaces_it(slurm: Player) -> None:
    make_fleet(2)
    listed = HEADER + pilot(1, node="n1") + pilot(2, "PENDING", why="Resources")
    slurm.answers(line("n1", "ALLOCATED"), listed)
    (slurm.folder / "throttle").write_text("7")
    first = intents.resize("slurm", "9", 2, reason="r", actor="user:ada")
    slurm.answers(line("n1", "ALLOCATED"), listed)
    first.refresh_from_db()
    assert first.state == "wanted" and "does not say" in first.detail
    second = intents.resize("slurm", "9", 1, reason="r", actor="user:ada")
    (slurm.folder / "throttle").write_text("1")
    slurm.answers(line("n1", "ALLOCATED"), listed)
    assert [Intent.objects.get(pk=each.pk).state for each in (first, second)] == ["void", "done"]
