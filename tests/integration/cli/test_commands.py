"""The command line against a live server: its words, its data and its exit codes."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.cli import follow
from controlplane.cli.context import BY_HAND
from controlplane.cli.exits import Exit
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Rank
from controlplane.protocol.frames import AgentEvent, DeviceLost
from controlplane.protocol.rank import DeterminismReport, NumericsReport, SectionTime, TimingReport
from controlplane.recovery import deadletter, numerics, speed
from controlplane.recovery.models import Decision, Incident, Request, Restart
from controlplane.runtime.clock import now
from controlplane.runtime.events import unit_of_work
from tests.integration.cli.conftest import World

Run = Callable[..., Any]
GOOD = "metadata: {name: fresh}\nspec:\n  resources: {nodes: 1, gpus_per_node: 2}\n"
BAD = "metadata: {name: Bad Name}\nspec:\n  resources: {nodes: 0, gpus_per_nod: 2}\n"


@pytest.fixture
def spec_file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "spec.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_a_piped_list_is_plain_whole_and_aligned(world: World, holdfast: Run) -> None:
    result = holdfast("job", "ls")
    header, row = result.out.splitlines()
    assert result.code == Exit.OK
    assert header.split() == [
        "NAME",
        "STATE",
        "STEP",
        "DONE",
        "LOSS",
        "STEP-TIME",
        "REPLICAS",
        "RESTARTS",
        "ETTR",
        "AGE",
        "NOT-HEARD",
    ]
    assert row.split()[:5] == ["tiny", "running", "3/10", "30.0%", "2.800"]
    assert row.index("running") == header.index("STATE")
    assert "\x1b" not in result.out
    assert result.err == ""


def test_a_terminal_gets_colour_and_no_more_than_its_width(world: World) -> None:
    def on_terminal(**environ: str) -> str:
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "controlplane.cli", "job", "ls", "-o", "wide"],
            stdout=follower, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[3],
            env=os.environ | {"COLUMNS": "60", "TERM": "xterm"} | environ,
        )  # fmt: skip
        os.close(follower)
        chunks = []
        while True:
            try:
                chunk = os.read(leader, 4096)
            except OSError:
                break
            if not chunk:
                break
            chunks.append(chunk)
        os.close(leader)
        assert process.wait(timeout=30) == 0
        return b"".join(chunks).decode()

    shown = on_terminal(COLUMNS="400")
    assert re.search(r"\x1b\[32mrunning *\x1b\[0m", shown)
    assert "\x1b[" not in on_terminal(COLUMNS="400", NO_COLOR="1")
    assert all(len(line) <= 60 for line in on_terminal().splitlines())


@pytest.mark.parametrize("form", ["json", "jsonl", "yaml", "name", "wide"])
def test_every_form_carries_the_job(world: World, holdfast: Run, form: str) -> None:
    out = holdfast("job", "ls", "-o", form).out
    match form:
        case "json":
            import json

            assert json.loads(out)["items"][0]["id"] == world.job_id
        case "yaml":
            assert yaml.safe_load(out)["items"][0]["id"] == world.job_id
        case "name":
            assert out == "tiny\n"
        case _:
            assert world.job_id in out


def test_a_submit_prints_data_on_stdout_and_advice_on_stderr(world: World, holdfast: Run, spec_file: Any) -> None:
    result = holdfast("job", "submit", spec_file(GOOD), "-o", "name")
    assert result.code == Exit.OK
    assert result.out.strip() == Job.objects.get(name="fresh").id
    assert "holdfast job watch fresh" in result.err
    quiet = holdfast("--quiet", "job", "get", "fresh", "-o", "name")
    assert quiet.err == ""


def test_a_faulty_spec_is_told_the_same_offline_and_by_the_server(world: World, holdfast: Run, spec_file: Any) -> None:
    path = spec_file(BAD)
    offline, online = holdfast("job", "validate", path), holdfast("job", "submit", path)
    assert (offline.code, online.code) == (Exit.USAGE, Exit.USAGE)
    for pointer in ("/metadata/name", "/spec/resources/nodes", "/spec/resources/gpus_per_nod"):
        assert pointer in offline.err
        assert pointer in online.err
    assert "fix: did you mean 'gpus_per_node'?" in online.err
    assert offline.out == online.out == ""


WAITS = "ok: it would wait: 2 replicas of 1 need 2 devices, 0 are free\n"


def test_a_dry_run_submits_nothing(world: World, holdfast: Run, spec_file: Any) -> None:
    result = holdfast("job", "submit", spec_file(GOOD), "--dry-run")
    assert (result.code, result.out) == (Exit.OK, WAITS)
    assert not Job.objects.filter(name="fresh").exists()


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 1)])
def test_waiting_mirrors_the_end(
    world: World, holdfast: Run, spec_file: Any, monkeypatch: pytest.MonkeyPatch, state: str, code: int
) -> None:
    def finish(_seconds: float) -> None:
        Job.objects.filter(name="fresh").update(state=state)

    monkeypatch.setattr(follow.time, "sleep", finish)
    result = holdfast("job", "submit", spec_file(GOOD), "--wait")
    assert result.code == code
    assert f"fresh: {state}" in result.err


def test_waiting_too_long_is_a_code_of_its_own(
    world: World, holdfast: Run, spec_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(follow, "time", type("Clock", (), {"monotonic": lambda: next(clock), "sleep": lambda s: None}))
    result = holdfast("job", "submit", spec_file(GOOD), "--wait", "--timeout", "5")
    assert result.code == Exit.TIMEOUT
    assert Job.objects.get(name="fresh").cancel_requested is False


def test_ctrl_c_detaches_and_says_how_to_cancel(
    world: World, holdfast: Run, spec_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(follow.time, "sleep", interrupt)
    result = holdfast("job", "submit", spec_file(GOOD), "--wait")
    assert result.code == Exit.INTERRUPTED
    assert "holdfast job cancel fresh" in result.err
    assert Job.objects.get(name="fresh").cancel_requested is False


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["job", "get", "nobody"], Exit.NOT_FOUND),
        (["node", "get", "nobody"], Exit.NOT_FOUND),
        (["node", "get", "n" * 101], Exit.NOT_FOUND),
        (["incident", "get", "inc_x"], Exit.NOT_FOUND),
        (["job", "nonsense"], Exit.USAGE),
        (["job", "ls", "-o", "xml"], Exit.USAGE),
        (["job", "submit", "/no/such/file"], Exit.USAGE),
        (["job", "evict-replica", "tiny", "7"], Exit.NOT_FOUND),
        (["token", "create", "x", "--scope", "admin"], Exit.AUTH),
        (["chaos", "summon-demons"], Exit.USAGE),
        (["--url", "http://127.0.0.1:9", "--timeout", "0.2", "job", "cancel", "-y", "tiny"], Exit.UNAVAILABLE),
    ],
)
def test_failures_have_their_exit_codes_and_no_traceback(
    world: World, holdfast: Run, monkeypatch: pytest.MonkeyPatch, argv: list[str], code: Exit
) -> None:
    monkeypatch.setattr("controlplane.sdk.retry.ATTEMPTS", 1)
    result = holdfast(*argv)
    assert result.code == code
    assert result.out == ""
    assert "error" in result.err.lower()
    assert "Traceback" not in result.err


def test_a_job_that_ended_cannot_be_cancelled(world: World, holdfast: Run) -> None:
    Job.objects.update(state="succeeded")
    assert holdfast("job", "cancel", "-y", "tiny").code == Exit.CONFLICT


def test_nobody_is_told_to_sign_in(world: World, holdfast: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_TOKEN")
    result = holdfast("job", "ls")
    assert result.code == Exit.AUTH
    assert "holdfast login" in result.err


def test_debug_shows_the_traceback(world: World, holdfast: Run) -> None:
    assert "Traceback" in holdfast("--debug", "job", "get", "nobody").err


def test_orders_are_facts_that_the_policy_answers(world: World, holdfast: Run) -> None:
    assert holdfast("job", "checkpoint", "tiny", "-r", "before lunch").code == Exit.OK
    refused = holdfast("job", "resume", "tiny")
    assert refused.code == Exit.CONFLICT and "only a preempted job can be resumed" in refused.err
    assert holdfast("job", "evict-replica", "tiny", "1").code == Exit.OK
    assert holdfast("job", "evict-replica", "tiny", "1").code == Exit.OK
    assert list(Request.objects.order_by("id").values_list("kind", "reason")) == [
        ("checkpoint", "before lunch"), ("evict", BY_HAND), ("evict", BY_HAND),
    ]  # fmt: skip


def test_a_lost_job_is_told_as_lost_until_it_is_acknowledged(world: World, holdfast: Run) -> None:
    Incident.objects.update(
        state="resolved", outcome="lost", resolution="The job fails: its budget is spent.", certificate=None
    )
    incident = Incident.objects.get()
    assert "lost" in holdfast("incident", "ls").out
    assert "lost: The job fails" in holdfast("incident", "get", incident.id).out
    assert holdfast("incident", "acknowledge", incident.id, "-r", "told the owner").code == Exit.OK
    incident.refresh_from_db()
    assert incident.acknowledgement == "told the owner"
    assert "told the owner" in holdfast("incident", "get", incident.id).out
    assert holdfast("incident", "acknowledge", incident.id).code != Exit.OK


def test_a_device_is_reset_by_node_and_index_unless_a_rank_is_on_it(world: World, holdfast: Run) -> None:
    refused = holdfast("node", "reset-device", "node-1", "0", "-r", "wrong sums")
    assert refused.code == Exit.CONFLICT
    assert "rank 0 of replica 0 of job 'tiny' is on it" in refused.err
    assert holdfast("node", "reset-device", "node-1", "7").code == Exit.NOT_FOUND
    Rank.objects.filter(node__name="node-1").update(released_at=now())
    done = holdfast("node", "reset-device", "node-1", "0", "-r", "wrong sums")
    assert (done.code, done.out[:38]) == (Exit.OK, "Device 0 of node-1 takes no new work; ")
    assert "wrong sums" in holdfast("gpu", "ls", "--node", "node-1", "-o", "wide").out


def test_a_node_is_found_by_its_name_however_many_others_contain_it(world: World, holdfast: Run) -> None:
    row = Node.objects.get(name="node-2")
    Node.objects.bulk_create(
        Node(id=f"node_more{number:04d}", name=f"a{number:04d}-node-2", state="ready") for number in range(50)
    )
    assert holdfast("node", "get", "node-2", "-o", "json").out.count(row.id) >= 1
    Node.objects.create(id="node_long", name=f"{'n' * 90}-2", state="ready")
    assert "node_long" in holdfast("node", "get", f"{'n' * 90}-2", "-o", "json").out


def test_nodes_are_cordoned_by_name(world: World, holdfast: Run) -> None:
    assert holdfast("node", "cordon", "node-2", "-r", "new cables").code == Exit.OK
    assert Node.objects.get(name="node-2").state == "cordoned"
    assert "cordoned" in holdfast("node", "ls").out
    again = holdfast("node", "cordon", "node-2")
    assert again.code == Exit.OK and "node-2 takes no new work." in again.out, again.err
    assert "is cordoned: it takes no new work already" in holdfast("node", "get", "node-2", "-o", "json").out
    assert holdfast("node", "uncordon", "node-2").code == Exit.OK


def test_chaos_aims_at_the_running_job_by_itself(world: World, holdfast: Run) -> None:
    result = holdfast("chaos", "kill-rank")
    assert result.code == Exit.OK, result.err
    asked = Request.objects.get(kind="fault")
    assert (asked.code, asked.replica, asked.rank) == ("sigkill", 1, 0)
    assert holdfast("chaos", "overheat-device", "--node", "node-1", "--device", "1", "--value", "99").code == Exit.OK
    heat = Command.objects.get(kind="inject_device_fault")
    assert (heat.body["device_index"], heat.body["value"]) == (1, 99.0)
    assert "kill-node" in holdfast("chaos").out


def test_a_rank_is_broken_by_name_of_the_fault(world: World, holdfast: Run) -> None:
    result = holdfast("rank", "fault", "tiny", "1", "0", "gil-lock", "--value", "3")
    assert result.code == Exit.OK, result.err
    asked = Request.objects.get(kind="fault")
    assert (asked.code, asked.value) == ("gil_lock", 3.0)
    assert holdfast("rank", "fault", "tiny", "1", "0", "meteor").code == Exit.USAGE


@pytest.mark.parametrize(
    "argv",
    [
        ["job", "describe", "tiny"], ["job", "events", "tiny"], ["job", "explain", "tiny"], ["gpu", "ls"],
        ["incident", "ls"], ["decision", "ls"], ["decision", "ls", "--job", "tiny"], ["token", "ls"], ["config"],
        ["version"], ["job", "logs", "tiny"], ["node", "get", "node-1"], ["job", "speed", "tiny"],
        ["job", "numerics", "tiny"], ["job", "budget", "tiny"], ["job", "timeouts", "tiny"],
        ["node", "dead-letters", "node-1"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_reading_command_succeeds(world: World, holdfast: Run, argv: list[str]) -> None:
    result = holdfast(*argv)
    assert result.code == Exit.OK, result.err


def test_an_event_that_was_put_aside_is_listed_with_what_to_do(world: World, holdfast: Run) -> None:
    node = Node.objects.get(name="node-1")
    with unit_of_work():
        deadletter.put(node, AgentEvent(7, 0.0, DeviceLost(9, "GPU-9")), ValueError("no such device"), tries=3)
    result = holdfast("node", "dead-letters", "node-1")
    assert result.code == Exit.OK
    assert result.out.splitlines()[1].split()[:4] == ["7", "device_lost", "waiting", "3"]
    assert "ValueError: no such device" in result.out
    assert "replay_dead_letters --node node-1" in result.err


def test_what_is_measured_and_counted_about_a_job_is_told_to_people_and_programs(world: World, holdfast: Run) -> None:
    job = Job.objects.get(pk=world.job_id)
    decision = Decision.objects.order_by("id")[0]
    Restart.objects.create(
        job=job, decision=decision, at=now(), attempt=1, rung="replica", charged=True, replica=0, incarnation=1
    )
    for rank in Rank.objects.select_related("replica").filter(replica__attempt__job=job):
        slow = 2.0 if (rank.replica.index, rank.rank) == (1, 0) else 1.0
        window = TimingReport(0, 9, 1, *(SectionTime(10, 10 * slow, slow, slow) for _ in range(5)))
        speed.take(job, rank, window, now())
    speed.score_if_due(job)
    spoilt = NumericsReport(2, 1, "gradient_not_finite", "transient", "nan", "0.5", (0,))
    numerics.take(job, rank, spoilt, now())
    numerics.count_steps(rank, DeterminismReport(9, 10, 9, 0.25), now())

    told = {what: holdfast("job", what, "tiny", "-o", "wide").out for what in ("speed", "budget", "numerics")}
    worst = told["speed"].split("Worst:\n")[1].splitlines()[1].split()
    assert (worst[0], worst[2], worst[4]) == ("1.1/0", "node-2", "0.50")
    assert "restarts:         1 of 1000" in told["budget"]
    assert re.search(r"replica +yes +0 +rank_exit +Replica 0 is evicted", told["budget"])
    assert re.search(r"gradient_not_finite +transient +nan +0.5", told["numerics"])
    assert re.search(r"1.1/1 +10 +9 +0.25", told["numerics"])
    assert holdfast("job", "budget", "tiny", "-o", "json").json["rungs"]["replica"] == 1
    assert holdfast("job", "speed", "tiny", "-o", "json").json["worst"][0]["relative"] == 0.5
    limits = {row["section"]: row for row in holdfast("job", "timeouts", "tiny", "-o", "json").json["items"]}
    assert limits["setup"]["source"] == "given"
    assert holdfast("job", "timeouts", "nobody").code == Exit.NOT_FOUND


def test_incident_and_decision_tell_their_story(world: World, holdfast: Run) -> None:
    incident = holdfast("incident", "get", Incident.objects.get().id).out
    assert "Certificate: pending" in incident
    assert "Replica 0 is evicted." in incident
    decision = holdfast("decision", "explain", Decision.objects.order_by("-id")[0].id).out
    assert "restart: 120 GPU-seconds  dearer" in decision
    assert "stop_ranks to node-1: queued" in decision


def test_a_watch_prints_what_happens_and_ends_with_the_job(world: World, holdfast: Run) -> None:
    from controlplane.jobs.services import transition_job

    job = Job.objects.get(pk=world.job_id)
    from controlplane.runtime.events import newest_seq, unit_of_work

    before = newest_seq()
    with unit_of_work():
        transition_job(job, "failed", "The disk is full.")
    result = holdfast("job", "watch", "tiny", "--since", str(before))
    assert result.code == Exit.OK
    assert "The disk is full." in result.out


def test_login_saves_a_token_that_works_and_hides_it(
    world: World, holdfast: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HOLDFAST_TOKEN")
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(world.token + "\n"))
    assert holdfast("login").code == Exit.OK
    path = tmp_path / "config.toml"
    assert path.stat().st_mode & 0o777 == 0o600
    monkeypatch.delenv("HOLDFAST_URL")
    assert holdfast("job", "ls").code == Exit.OK
    shown = holdfast("config")
    assert world.token not in shown.out
    assert str(path) in shown.out
    monkeypatch.setattr("sys.stdin", io.StringIO("holdfast_read_wrong\n"))
    assert holdfast("login").code == Exit.AUTH
    assert world.token in path.read_text()
