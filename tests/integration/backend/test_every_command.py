"""Every command of `holdfast` and every one of ours of `manage.py`, run against live processes.

A page may name a command in a sentence or a table, where no block runs it; so each is run here, in
one shell and one order, over a fleet that is scripted (`fleet_of_cores`). What starts a server or
trains for long is run by the test that is named instead.
"""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from asgiref.sync import sync_to_async
from click import Command

from controlplane.cli.main import app
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.protocol.samples import DeviceInfo
from tests.house.tree import ROOT
from tests.integration.backend.conftest import eventually, submit
from tests.integration.backend.fake_agent import enroll, join_token
from tests.integration.backend.fleet_of_cores import World
from tests.integration.backend.reader import Reader
from tests.integration.backend.servers import Stack
from tests.integration.backend.test_documents import after_a_replica_was_lost, after_events_were_put_aside

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(480)]
ELSEWHERE = {
    "holdfast bench fleet": "tests/integration/bench/test_fleet.py",
    "holdfast slurm epilog": "tests/unit/slurm/test_observer.py",
    "holdfast slurm healthcheck": "tests/unit/slurm/test_observer.py",
    "holdfast slurm pilots": "tests/unit/slurm/test_pilots.py",
    "holdfast slurm prolog": "tests/unit/slurm/test_observer.py",
    "holdfast slurm submit": "tests/unit/slurm/test_submit.py",
    "holdfast up": "tests/scenes/test_up.py",
    "manage.py sentinel": "tests/integration/backend/servers.py",
}
"""What starts a server, lasts minutes or needs another scheduler, and the file that runs it."""

OFFLINE = """
holdfast version
holdfast config
holdfast job validate examples/minimal.yaml -o yaml
holdfast job schema > schema.json
holdfast job features
holdfast import straggler-trace trace.csv
holdfast login < token.txt
"""
PEOPLE = """
once=$(python manage.py create_user eve --scope submit | tail -n 1)
printf '%s\\n%s\\n' "$once" "a new horse, correct battery" | holdfast password eve
python manage.py create_admin root
export HOLDFAST_TOKEN=$(python manage.py create_api_token ada --name second --scope admin)
python manage.py create_join_token --name gpu-9
holdfast project create vision --quota 8 --reason "a new team"
holdfast project set vision --lend 4 --max-priority 700
holdfast project set-member vision eve operator
holdfast project show vision
holdfast project bill vision --export bill.csv
holdfast project remove-member vision eve
holdfast project ls
made=$(holdfast token create night-shift --scope read -o name | sed -n 1p)
holdfast token ls
holdfast token revoke "$made"
bound=$(holdfast join-token create --name gpu-8 -o name | sed -n 1p)
holdfast join-token ls
holdfast token ls --everybody
holdfast audit export --since 1h --out exported.jsonl
holdfast join-token revoke "$bound"
"""
JOBS = """
holdfast job ls
holdfast job get first-light
holdfast job describe first-light
holdfast job events first-light
holdfast job logs first-light
holdfast job explain first-light
holdfast job speed first-light
holdfast job numerics first-light
holdfast job budget first-light
holdfast job timeouts first-light
holdfast job checkpoint first-light --reason "before the move"
holdfast rank debug first-light 0 0 stacks
holdfast rank collect-garbage first-light 0 0
holdfast rank trace-allocations first-light 0 0 --duration-s 0.1 -o json
holdfast rank fault first-light 0 0 exception --reason rehearsal
holdfast job evict-replica first-light 0 --reason "its fan is loud"
asked=$(holdfast request ls --kind evict -o name | sed -n 1p)
holdfast request get "$asked"
holdfast request withdraw "$asked" --reason "it has a new fan"
holdfast ledger --since 7d --by cause --export ledger.csv
holdfast ledger --job first-light --by job
holdfast queue
holdfast capacity
holdfast chaos
"""
NODES = """
holdfast node ls
holdfast gpu ls
holdfast node get node-1
holdfast node dead-letters node-3
holdfast node confirm node-9 --reason "the machine in rack 9"
holdfast node cordon node-9 --reason "a new cable"
holdfast node uncordon node-9 --reason "it has its cable"
holdfast node maintain node-9 --from 2h --for 1h --reason "new fans"
holdfast window ls
holdfast window cancel "$(holdfast window ls -o name | sed -n 1p)" --reason "no fans came"
holdfast window set node-9 --from 2d --for 1h --reason "a new switch"
holdfast reservation set default node-9 --from 3d --for 1h --reason "a deadline"
holdfast reservation ls
holdfast reservation cancel "$(holdfast reservation ls -o name | sed -n 1p)" --reason "not needed"
holdfast engine ls
holdfast engine pools
holdfast engine pilots
holdfast engine intents
holdfast engine resize 4711 2 --reason "a quiet week" || echo "there is none: $?"
holdfast node reset-device node-9 0 --reason "it is slow"
holdfast node drain node-9 --reason "new fans"
holdfast node rotate-key node-1
holdfast node revoke node-9 --reason "it was sold"
holdfast node restore node-9 --reason "it was not"
holdfast node re-enrol node-9
holdfast node rm node-9 --reason "now it was"
"""
LOOKED_BACK = """
incident=$(holdfast incident ls -o name | sed -n 1p)
holdfast incident get "$incident"
holdfast incident readings "$incident"
holdfast incident acknowledge "$incident" --reason "seen"
holdfast breaker show
holdfast breaker close brk_none --reason "looked at" || echo "there is none: $?"
decision=$(holdfast decision ls -o name | sed -n 1p)
holdfast decision explain "$decision"
holdfast decision approve "$decision" --reason "looked at" || echo "it was carried out at once: $?"
holdfast decision reject "$decision" --reason "looked at" || echo "it was carried out at once: $?"
holdfast decision hold "$decision" --reason "looked at" || echo "it was carried out at once: $?"
"""
POLICIES = """
printf 'max_acts: 15\n' > policy.yaml
holdfast policy show --all
holdfast policy set policy.yaml --reason "fewer at night"
holdfast policy versions
holdfast policy xids --disagree
holdfast policy diff 0
holdfast policy dry-run policy.yaml --since 1h
holdfast decision replay --since 1h
printf 'max_acts: 14\n' > shadow.yaml
holdfast policy shadow start shadow.yaml --min-decisions 1000
holdfast policy shadow show
holdfast policy shadow promote || echo "below the bar: $?"
holdfast policy shadow stop --reason "looked at"
holdfast policy rollback 0 --reason "as it was"
"""
SERVER = """
python manage.py print_config
letter=$(holdfast node dead-letters node-3 -o name | sed -n 1p)
python manage.py discard_dead_letters --id "$letter" --reason "the rank is long gone"
python manage.py replay_dead_letters
python manage.py sandbox_check || echo "this machine gives less: $?"
python manage.py reseal
python manage.py adopt_job job_none examples/minimal.yaml || echo "there is none: $?"
HOLDFAST_SIGNING_KEY_FILE="$PWD/keys.json" python manage.py create_signing_key
python manage.py rotate_signing_key
python manage.py verify_audit
python manage.py export_audit --output audit.jsonl
python manage.py prune_audit --keep-days 365 --export pruned.jsonl
"""
YIELDED = """
holdfast job preempt first-light --reason "for the night" --wait --timeout 120
holdfast job resume first-light --reason "it is day" --wait --timeout 60
"""
CANCELLED = """
holdfast job cancel first-light --yes
"""
ENDS = """
holdfast job submit examples/minimal.yaml --dry-run
name=$(holdfast --quiet job submit examples/minimal.yaml -o name)
holdfast job watch "$name" || echo "ended with $?"
python manage.py reference_run "$name"
"""
STORY = (OFFLINE, PEOPLE, JOBS, NODES, LOOKED_BACK, POLICIES, SERVER, YIELDED, CANCELLED, ENDS)
TRACE = "dp_rank,stage,rank,step,optype,duration\n" + "".join(
    f"{dp},0,{dp},{step},{kind},{1.0 if dp else 2.0}\n"
    for step in range(12)
    for dp in range(4)
    for kind in ("forward-compute", "backward-compute")
)
"""Rank 0 takes twice as long as the others."""


def leaves(command: Command, path: tuple[str, ...] = ("holdfast",)) -> Iterator[str]:
    """Every command below, as it is typed."""
    below: dict[str, Command] = getattr(command, "commands", {})
    if not below:
        yield " ".join(path)
    for name, each in below.items():
        yield from leaves(each, (*path, name))


def ours() -> Iterator[str]:
    """Our commands of manage.py."""
    for path in sorted((ROOT / "controlplane").glob("*/management/commands/[!_]*.py")):
        yield f"manage.py {path.stem}"


def every_command() -> list[str]:
    return [*leaves(typer.main.get_command(app)), *ours()]


@pytest.mark.parametrize("command", every_command())
def test_each_command_is_run_by_the_story_or_by_the_file_that_is_named(command: str) -> None:
    run = f"{command} " in "".join(STORY).replace("\n", " ")
    assert run != (command in ELSEWHERE)
    if not run:
        assert f'"{command.split()[-1]}"' in (ROOT / ELSEWHERE[command]).read_text()


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
async def test_every_command_does_what_it_is_there_for(
    reader: Reader, world: World, stack: Stack, tmp_path: Path
) -> None:
    reader.environment |= stack.env
    reader.shorten(20)
    (reader.folder / "trace.csv").write_text(TRACE)
    job = await submit()
    await sync_to_async(Job.objects.filter(pk=job.pk).update)(name="first-light")
    await after_a_replica_was_lost(world, stack)
    held = await sync_to_async(join_token)(hold=True)
    device = DeviceInfo(index=0, uuid="GPU-9", model="Test", memory_bytes=1 << 34, driver="simulated")
    await asyncio.to_thread(enroll, stack.url, "node-9", held, devices=(device,))
    world.running = False
    said = [await asyncio.to_thread(reader.shell, told) for told in (OFFLINE, PEOPLE, JOBS, NODES)]
    assert "worker" in said[0] and "first-light" in said[2]
    assert not await sync_to_async(Node.objects.filter(name="node-9").exists)()
    await after_events_were_put_aside(world, stack)
    looked_back = await asyncio.to_thread(reader.shell, LOOKED_BACK)
    assert "replica" in looked_back
    policies = await asyncio.to_thread(reader.shell, POLICIES)
    assert "max_acts: 20 -> 15" in policies and "max_acts: 15 -> 20" in policies
    server = await asyncio.to_thread(reader.shell, SERVER)
    assert "HOLDFAST_" in server
    world.running = True
    yielded = await asyncio.to_thread(reader.shell, YIELDED)
    assert yielded.count("done: ") == 2, yielded
    await asyncio.to_thread(reader.shell, CANCELLED)
    await eventually("its ranks are gone", lambda: not world.ranks, stack=stack)
    await asyncio.to_thread(reader.shell, ENDS)
    ended = await sync_to_async(lambda: dict(Job.objects.values_list("name", "state")))()
    assert ended == {"first-light": "cancelled", "minimal": "succeeded"}
