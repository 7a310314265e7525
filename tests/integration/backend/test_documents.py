"""The blocks of the documents that speak to a server, run as they are written against a live one.

Real web and sentinel processes; the fleet is scripted (`fleet_of_cores`) and the job trains. A page's
blocks of curl, `holdfast` and `manage.py` run in one shell from top to bottom, its Python in one
interpreter; the address of the server is the only thing changed. What cannot be run here is named.
"""

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable

import pytest
from asgiref.sync import sync_to_async

from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.protocol import frames
from controlplane.protocol.launch import RankRef
from controlplane.protocol.samples import XidEvent
from controlplane.recovery import deadletter
from controlplane.recovery.models import DeadLetter, Incident
from controlplane.runtime.events import unit_of_work
from tests.house.blocks import Block, blocks_of
from tests.house.tree import ROOT
from tests.integration.backend.conftest import eventually, submit
from tests.integration.backend.fleet_of_cores import World
from tests.integration.backend.reader import DOCUMENTED_URLS, Reader
from tests.integration.backend.servers import Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
CURL_PAGES = ("docs/api.md", "docs/faults.md")
PYTHON_PAGES = ("docs/sdk.md",)
COMMAND_PAGES = ("docs/quickstart.md", "docs/cli.md", "docs/debugging.md", "docs/operations.md")
"""Their blocks of `holdfast` and `manage.py` are run in this order, over one server."""
DOCKER = "needs a container engine; scripts/compose_drill.py runs it as written (make compose-drill)"
NOT_RUN = {
    "README.md: make demo     # everything on this machine: backend, agents, real Megatron-core ranks, the page":
        "never ends; tests/integration/demo starts the same demo",
    "docs/hooks.md: python examples/megatron_lm.py /opt/Megatron-LM/pretrain_gpt.py --save-interval 500 ...":
        "needs a checkout of Megatron-LM and its data",
    "docs/operations.md: docker compose run --rm migrate python manage.py create_signing_key": DOCKER,
    "docs/ppo.md: make demo-ppo": "trains for minutes",
    "docs/quickstart.md: docker compose run --rm migrate python manage.py create_signing_key": DOCKER,
}  # fmt: skip
"""Shell blocks that are parsed and not run, by page and first line, each with the reason."""
MOST_NOT_RUN = 5
NEEDS_TOOLS = pytest.mark.skipif(
    shutil.which("curl") is None or shutil.which("jq") is None, reason="curl and jq are not installed"
)


async def until_it_trains(world: World, stack: Stack) -> None:
    """The newest job commits steps."""
    await eventually(
        "the job trains", lambda: Job.objects.filter(state="running", committed_step__gte=5).exists(), stack=stack
    )


async def after_a_replica_was_lost(world: World, stack: Stack) -> None:
    """A replica dies, and every incident is resolved and has its certificate."""
    await until_it_trains(world, stack)
    world.kill_replica(max(ref.replica for ref in world.ranks))
    await eventually("the incident is opened", Incident.objects.exists, stack=stack)
    await eventually("all are resolved", lambda: not Incident.objects.exclude(state="resolved").exists(), stack=stack)
    await eventually("certificates are written", _all_certified, stack=stack)


async def until_first_light_trains(world: World, stack: Stack) -> None:
    """The job of the pages' examples trains."""
    job = await submit()
    await sync_to_async(Job.objects.filter(pk=job.pk).update)(name="first-light")
    running = Job.objects.filter(pk=job.pk, state="running", committed_step__gte=5)
    await eventually("first-light trains", running.exists, stack=stack)


async def after_a_device_was_lost(world: World, stack: Stack) -> None:
    """A device under no job falls off the bus: an incident that waits for hardware."""
    used = {rank.agent.name for rank in world.ranks.values()}
    free = next(agent for agent in world.agents if agent.name not in used)
    free.tell(frames.XidSeen(XidEvent(index=1, xid=79)))
    waits = Incident.objects.filter(state="mitigated", job=None)
    await eventually("the incident waits for hardware", waits.exists, stack=stack)


async def after_events_were_put_aside(world: World, stack: Stack) -> None:
    """Two events of node-3: one that can be applied by now, then one that never can. The job stands still."""
    world.running = False
    await sync_to_async(_put_aside)()


def _put_aside() -> None:
    node = Node.objects.get(name="node-3")
    never = RankRef("job_01KEXAMPLE", 1, 0, 1, 0)
    bodies = (frames.XidSeen(XidEvent(index=0, xid=13)), frames.RankExited(never, None, 9, False))
    for seq, body in enumerate(bodies, start=900_000):
        with unit_of_work():
            deadletter.put(node, frames.AgentEvent(seq, 0.0, body), ValueError("made by this test"), tries=3)


def _all_certified() -> bool:
    certificates = Incident.objects.values_list("certificate", flat=True)
    return all(certificate is None or certificate["state"] != "pending" for certificate in certificates)


BETWEEN: dict[str, Callable[[World, Stack], Awaitable[None]]] = {
    "until it trains": until_it_trains,
    "after a replica was lost": after_a_replica_was_lost,
    "until first-light trains": until_first_light_trains,
    "after a device was lost": after_a_device_was_lost,
    "after events were put aside": after_events_were_put_aside,
}


async def follow(reader: Reader, blocks: list[Block], world: World, stack: Stack) -> list[str]:
    """Run shell blocks in order, with what comes between them; each one's output."""
    outputs = []
    for block in blocks:
        if block.note:
            await BETWEEN[block.note](world, stack)
        outputs.append(await asyncio.to_thread(reader.shell, block.text))
    return outputs


@NEEDS_TOOLS
async def test_the_guide_to_the_api_tells_one_story_and_each_request_in_it_succeeds(
    reader: Reader, world: World, stack: Stack
) -> None:
    blocks = [block for block in blocks_of(ROOT / "docs" / "api.md") if block.asks]
    outputs = await follow(reader, blocks, world, stack)
    answers = reader.answers()
    assert len(answers) == sum(block.text.count("curl -") for block in blocks)
    assert [answer for answer in answers if not 200 <= answer[0] < 300] == []
    job = await sync_to_async(Job.objects.get)()
    assert job.name == "tiny-gpt", "one job, which every later block asks about"
    assert all(job.id in request for _, request in answers if "/jobs/" in request)
    assert '"state": "running"' in outputs[3] and f'"id":"{job.id}"' in outputs[3].replace(" ", "")
    assert "incomplete" in outputs[5], "the certificate of the incident that was asked for"
    assert f"job_id={job.id}" in answers[-2][1]
    assert "data: " in outputs[6], "what happened to the job is told again"
    await eventually("it is cancelled", lambda: Job.objects.get().state == "cancelled", stack=stack)


@NEEDS_TOOLS
async def test_the_orders_to_break_a_rank_are_taken(reader: Reader, world: World, stack: Stack) -> None:
    job = await submit()
    await sync_to_async(Job.objects.filter(pk=job.pk).update)(name="first-light")
    await until_it_trains(world, stack)
    setting = blocks_of(ROOT / "docs" / "api.md")[0]
    blocks = [block for block in blocks_of(ROOT / "docs" / "faults.md") if block.asks]
    await follow(reader, [setting, *blocks], world, stack)
    assert [status for status, request in reader.answers() if "first-light:fault" in request] == [202]


@NEEDS_TOOLS
async def test_what_the_pages_tell_holdfast_and_manage_py_to_do_is_done(
    reader: Reader, world: World, stack: Stack
) -> None:
    reader.shorten(40)
    reader.environment |= stack.env
    told = [block for page in COMMAND_PAGES for block in blocks_of(ROOT / page) if block.orders]
    blocks = [block for block in told if block.first not in NOT_RUN]
    outputs = dict(zip(blocks, await follow(reader, blocks, world, stack), strict=True))
    said = {page: "".join(outputs[b] for b in blocks if b.page == ROOT / page) for page in COMMAND_PAGES}
    ended = await sync_to_async(lambda: list(Job.objects.order_by("created_at").values_list("name", "state")))()
    assert ended == [
        ("minimal", "succeeded"), ("tiny-gpt", "succeeded"), ("tiny-gpt", "succeeded"), ("first-light", "running")
    ]  # fmt: skip
    assert "it would start now" in said["docs/quickstart.md"]
    assert "succeeded" in said["docs/cli.md"]
    assert "in all_reduce" in said["docs/debugging.md"]
    incident = await sync_to_async(Incident.objects.get)(job=None)
    assert incident.state == "resolved" and "(token " in incident.acknowledged_by
    states = await sync_to_async(lambda: dict(DeadLetter.objects.values_list("kind", "state")))()
    assert states == {"xid_seen": "replayed", "rank_exited": "discarded"}


async def test_the_page_of_the_python_client_runs_from_top_to_bottom(
    reader: Reader, world: World, stack: Stack
) -> None:
    blocks = [block for block in blocks_of(ROOT / "docs" / "sdk.md") if block.language == "python"]
    said = await asyncio.to_thread(reader.python, "\n\n".join(block.text for block in blocks))
    job = await sync_to_async(Job.objects.get)()
    assert (job.name, job.state) == ("from-python", "succeeded")
    assert "would start now" in said and "/spec/resources/nodes" in said


async def test_a_refused_spec_is_answered_as_the_guide_shows(reader: Reader, stack: Stack) -> None:
    (block,) = [block for block in blocks_of(ROOT / "docs" / "api.md") if block.language == "json"]
    shown = json.loads(block.text)
    spec = (ROOT / "examples" / "tiny.yaml").read_text().replace("steps: 2000", "steps: 0")
    (reader.folder / "wrong.yaml").write_text(spec)
    ask = '-s -H "Authorization: Bearer $HOLDFAST_TOKEN" -H "Content-Type: application/yaml"'
    text = await asyncio.to_thread(
        reader.shell, f"curl {ask} --data-binary @wrong.yaml {DOCUMENTED_URLS[0]}/api/v1/jobs"
    )
    given = json.loads(text)
    same = ("type", "title", "status", "instance", "detail")
    assert {name: given[name] for name in same} == {name: shown[name] for name in same}
    assert set(given) == set(shown)
    assert given["errors"] == shown["errors"]
