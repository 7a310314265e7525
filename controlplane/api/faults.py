"""What the demo can break, and how: each fault a small function in one table.

Only mounted where settings.HOLDFAST_DEMO is on. Ranks, devices and links are broken by
commands that the agents refuse outside a demo; processes by a request file that the
demo's supervisor, which started them, carries out.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from django.conf import settings

from controlplane.api.bodies import NewFault
from controlplane.api.problems import Kind, Problem
from controlplane.api.rank_orders import inject_fault
from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch.services import enqueue
from controlplane.fleet import selectors as fleet
from controlplane.fleet import services as fleet_services
from controlplane.fleet.models import Node
from controlplane.jobs import selectors as jobs
from controlplane.jobs.models import Rank
from controlplane.jobs.numbers import GOOD_CHECKPOINTS, LOCAL_KIND
from controlplane.jobs.services import submit_job
from controlplane.protocol.commands import InjectDeviceFault, InjectLinkFault
from controlplane.protocol.rest import FaultValue, FieldError
from controlplane.protocol.spec_lint import lint
from controlplane.protocol.states import NodeState
from controlplane.runtime.errors import Conflict
from controlplane.runtime.ids import new_id

DEFAULT_HOT_C = 97.0
DEFAULT_XID = 79.0
DEFAULT_ECC_ERRORS = 1.0
DEFAULT_SLOW_S = 0.5
DEFAULT_CUT_S = 20.0
DEFAULT_DOWN_S = 2.0
NODE_DOWN_S = 20.0
DEFAULT_PROCESS = "worker"
FLIPPED_BYTES = 16
CORDON_REASON = "demo: no spares"
REASON = "demo: on purpose"
PROCESSES = MappingProxyType({"web": "web-1", "worker": "worker", "sentinel": "sentinel", "redis": "redis"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What was ordered."""

    detail: str
    command_ids: tuple[str, ...] = ()
    request: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFault:
    """One entry of the panel; `needs` are fields of the request; `value` what its strength means,
    None where it has none."""

    title: str
    description: str
    needs: tuple[str, ...]
    run: Callable[[NewFault, str], Done]
    value: FaultValue | None = None


def inject(body: NewFault, actor: str) -> Done:
    """Carry out one fault in the current unit of work. Raises Problem for a wrong one."""
    fault = FAULTS.get(body.kind)
    if fault is None:
        told = FieldError("/kind", f"{body.kind!r} is no fault", f"use {', '.join(FAULTS)}")
        raise Problem(Kind.INVALID, "The body is not valid.", errors=[told])
    fields = {"job": "job_id", "replica": "replica", "rank": "rank", "node": "node_id", "device": "device_index"}
    missing = [fields[need] for need in fault.needs if getattr(body, fields[need]) is None]
    if missing:
        told_all = [FieldError(f"/{name}", "missing", f"{body.kind} needs {name}") for name in missing]
        raise Problem(Kind.INVALID, "The body is not valid.", errors=told_all)
    done = fault.run(body, actor)
    return replace(done, detail=f"{fault.title}: {done.detail}")


def is_of_job(kind: str) -> bool:
    """It is aimed at one job; any other, known or not, is the fleet's."""
    return kind in FAULTS and "job" in FAULTS[kind].needs


def _number(body: NewFault, default: float) -> float:
    return float(body.value) if isinstance(body.value, int | float) else default


def _rank(fault: str, default: float = 0.0) -> Callable[[NewFault, str], Done]:
    def run(body: NewFault, actor: str) -> Done:
        job = jobs.job(body.job_id or "")
        row = inject_fault(
            job,
            body.replica or 0,
            body.rank or 0,
            fault=fault,
            value=_number(body, default),
            actor=actor,
            reason=REASON,
        )
        return Done(detail=f"rank {body.rank} of replica {body.replica} of {job.name}.", request=row.id)

    return run


def _device(fault: str, default: float) -> Callable[[NewFault, str], Done]:
    def run(body: NewFault, actor: str) -> Done:
        node = fleet.node(body.node_id or "")
        index = body.device_index or 0
        if not node.devices.filter(index=index).exists():
            raise Problem(Kind.NOT_FOUND, f"{node.name} has no device {index}.")
        order = InjectDeviceFault(device_index=index, fault=fault, value=_number(body, default))
        command = enqueue(order, node_id=node.id, ttl_s=15.0)
        return Done(detail=f"device {index} of {node.name}.", command_ids=(command.id,))

    return run


def _cut_node(body: NewFault, actor: str) -> Done:
    node, seconds = fleet.node(body.node_id or ""), _number(body, DEFAULT_CUT_S)
    command = enqueue(InjectLinkFault(seconds=seconds), node_id=node.id, ttl_s=15.0)
    return Done(detail=f"{node.name} is cut off for {seconds:g} s; its ranks keep running.", command_ids=(command.id,))


def _kill_node(body: NewFault, actor: str) -> Done:
    node = fleet.node(body.node_id or "")
    _leave_request(f"node:{node.name}", _number(body, NODE_DOWN_S))
    return Done(detail=f"agent and ranks of {node.name} die at once.")


def _kill_backend(body: NewFault, actor: str) -> Done:
    wanted = body.value if isinstance(body.value, str) else DEFAULT_PROCESS
    name = PROCESSES.get(wanted, wanted)
    if name not in PROCESSES.values():
        told = FieldError("/value", f"{wanted!r} is no process of the backend", f"use {', '.join(PROCESSES)}")
        raise Problem(Kind.INVALID, "The body is not valid.", errors=[told])
    _leave_request(name, DEFAULT_DOWN_S)
    return Done(detail=f"{name} is killed and comes back by itself; training continues.")


def _leave_request(name: str, down_s: float) -> None:
    """Atomically, so that the supervisor never reads half a file."""
    if settings.HOLDFAST_DEMO_DIR is None:
        raise Conflict("no supervisor watches here: processes can only be killed in `make demo`")
    folder = Path(settings.HOLDFAST_DEMO_DIR) / "requests"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{new_id('flt')}.json"
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps({"kind": "kill_process", "name": name, "down_s": down_s}))
    draft.rename(path)


def _no_spares(body: NewFault, actor: str) -> Done:
    busy = set(Rank.objects.filter(released_at=None).values_list("node_id", flat=True))
    free = Node.objects.filter(state__in=(NodeState.READY, NodeState.DEGRADED)).exclude(pk__in=busy).order_by("name")
    names = [fleet_services.cordon(node.id, reason=CORDON_REASON, actor=actor).name for node in free]
    return Done(detail=f"{', '.join(names)} cordoned." if names else "no node was free.")


def _restore_spares(body: NewFault, actor: str) -> Done:
    ours = Node.objects.filter(state=NodeState.CORDONED, state_reason__startswith=CORDON_REASON).order_by("name")
    names = [fleet_services.uncordon(node.id, reason="demo: spares are back", actor=actor).name for node in ours]
    return Done(detail=f"{', '.join(names)} uncordoned." if names else "no node was cordoned by the demo.")


def _corrupt_checkpoint(body: NewFault, actor: str) -> Done:
    job = jobs.job(body.job_id or "")
    rows = Checkpoint.objects.filter(job=job, state__in=GOOD_CHECKPOINTS).exclude(kind=LOCAL_KIND)
    row = rows.order_by("-step", "-epoch").first()
    if row is None:
        raise Conflict(f"{job.name} has no committed checkpoint yet")
    name = _flip_bytes(Path(row.path))
    return Done(detail=f"{FLIPPED_BYTES} bytes of {name} in the checkpoint of step {row.step} are flipped.")


def _flip_bytes(folder: Path) -> str:
    """The largest data file below `folder`, which must lie under the checkpoint root."""
    root = Path(settings.CHECKPOINT_ROOT).resolve()
    folder = folder.resolve()
    if root not in folder.parents:
        raise Conflict("the checkpoint does not lie under the server's checkpoint root; nothing was touched")
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and path.suffix != ".json"]
    if not files:
        raise Conflict("the checkpoint holds no data files any more")
    victim = max(files, key=lambda path: (path.stat().st_size, path.name))
    with victim.open("r+b") as file:
        file.seek(victim.stat().st_size // 2)
        at = file.tell()
        data = file.read(FLIPPED_BYTES)
        file.seek(at)
        file.write(bytes(byte ^ 0xFF for byte in data))
        file.flush()
        os.fsync(file.fileno())
    return victim.name


def _submit_another(body: NewFault, actor: str) -> Done:
    spec = lint(another_spec(new_id("an")[-6:].lower())).spec
    assert spec is not None, "the demo's own spec is sound"
    job = submit_job(spec, owner=actor.partition(":")[2], actor=actor)
    return Done(detail=f"{job.name} was submitted.")


def another_spec(suffix: str) -> dict[str, object]:
    """A small job beside the demo's."""
    return {
        "metadata": {"name": f"another-{suffix}"},
        "spec": {
            "resources": {"nodes": 2, "gpus_per_node": 2},
            "parallelism": {"pp": 2},
            "training": {"steps": 60, "global_batch": 8, "warmup_steps": 2, "step_delay_s": 0.02},
            "checkpoint": {"interval_steps": 20, "keep": 1},
            "resiliency": {"allow_faults": True},
        },
    }


_RANK = ("job", "replica", "rank")
_DEVICE = ("node", "device")
FAULTS: Mapping[str, DemoFault] = MappingProxyType(
    {
        "kill_rank": DemoFault(
            title="Kill a rank", description="SIGKILL in the middle of a step.", needs=_RANK, run=_rank("sigkill")
        ),
        "stop_rank": DemoFault(
            title="Freeze a rank", description="SIGSTOP: alive, and silent.", needs=_RANK, run=_rank("sigstop")
        ),
        "continue_rank": DemoFault(
            title="Thaw a rank", description="SIGCONT after a freeze.", needs=_RANK, run=_rank("sigcont")
        ),
        "hang_rank": DemoFault(
            title="Hang a rank", description="It loops for ever inside its step.", needs=_RANK, run=_rank("hang")
        ),
        "slow_rank": DemoFault(
            title="Slow a rank down",
            description="Each micro-batch takes so much longer; 0 heals.",
            needs=_RANK,
            run=_rank("slow", DEFAULT_SLOW_S),
            value=FaultValue(label="Seconds more a micro-batch (0 heals)", default=f"{DEFAULT_SLOW_S:g}"),
        ),
        "raise_in_rank": DemoFault(
            title="Raise an exception", description="In its next step: exit 70.", needs=_RANK, run=_rank("exception")
        ),
        "nan_in_rank": DemoFault(
            title="Poison a gradient", description="It is not finite: exit 16.", needs=_RANK, run=_rank("nan")
        ),
        "abort_rank": DemoFault(
            title="Abort a rank", description="SIGABRT, as native code does.", needs=_RANK, run=_rank("abort")
        ),
        "segfault_rank": DemoFault(
            title="Crash a rank", description="A real segmentation fault.", needs=_RANK, run=_rank("segfault")
        ),
        "lock_rank": DemoFault(
            title="Lock a rank's interpreter",
            description="One thread keeps the GIL: the process is alive and reports nothing.",
            needs=_RANK,
            run=_rank("gil_lock"),
        ),
        "cut_rank": DemoFault(
            title="Cut a rank's connections",
            description="Its exchange fails, with nobody dead.",
            needs=_RANK,
            run=_rank("communication"),
        ),
        "overheat_device": DemoFault(
            title="Overheat a device",
            description="It heats up towards a temperature.",
            needs=_DEVICE,
            run=_device("overheat", DEFAULT_HOT_C),
            value=FaultValue(label="Temperature, C", default=f"{DEFAULT_HOT_C:g}"),
        ),
        "xid": DemoFault(
            title="Report an XID",
            description=f"The driver reports one ({DEFAULT_XID:g}: fallen off the bus).",
            needs=_DEVICE,
            run=_device("xid", DEFAULT_XID),
            value=FaultValue(label="XID", default=f"{DEFAULT_XID:g}"),
        ),
        "device_off_bus": DemoFault(
            title="Lose a device", description="It is gone from the bus.", needs=_DEVICE, run=_device("off_bus", 0.0)
        ),
        "ecc_errors": DemoFault(
            title="Spoil memory",
            description="Uncorrectable ECC errors, and a row that waits for its remapping.",
            needs=_DEVICE,
            run=_device("ecc", DEFAULT_ECC_ERRORS),
            value=FaultValue(label="Uncorrectable errors", default=f"{DEFAULT_ECC_ERRORS:g}"),
        ),
        "throttle_device": DemoFault(
            title="Throttle a device",
            description="Its hardware slows its clock down, whatever its temperature.",
            needs=_DEVICE,
            run=_device("throttle", 0.0),
        ),
        "cut_nvlink": DemoFault(
            title="Cut an NVLink",
            description="A link of the device is down: its node fails its own checks until that is healed.",
            needs=_DEVICE,
            run=_device("nvlink", 0.0),
            value=FaultValue(label="Link", default="0"),
        ),
        "old_driver": DemoFault(
            title="Age a driver",
            description="Its node fails its own checks: nothing is started there until the device is healed.",
            needs=_DEVICE,
            run=_device("old_driver", 0.0),
        ),
        "heal_device": DemoFault(
            title="Heal a device", description="All its faults end.", needs=_DEVICE, run=_device("heal", 0.0)
        ),
        "kill_node": DemoFault(
            title="Lose a node",
            description="Agent and ranks die; the node comes back after a while.",
            needs=("node",),
            run=_kill_node,
            value=FaultValue(label="Seconds until it is back", default=f"{NODE_DOWN_S:g}"),
        ),
        "cut_node": DemoFault(
            title="Cut a node off",
            description="Its link is down for a while; its ranks live.",
            needs=("node",),
            run=_cut_node,
            value=FaultValue(label="Seconds", default=f"{DEFAULT_CUT_S:g}"),
        ),
        "no_spares": DemoFault(
            title="Run out of spares", description="Cordon every node without ranks.", needs=(), run=_no_spares
        ),
        "restore_spares": DemoFault(
            title="Bring spares back", description="Uncordon those again.", needs=(), run=_restore_spares
        ),
        "kill_backend": DemoFault(
            title="Kill the backend",
            description="One process is killed; it comes back by itself.",
            needs=(),
            run=_kill_backend,
            value=FaultValue(label="Process", default=DEFAULT_PROCESS, choices=list(PROCESSES)),
        ),
        "corrupt_checkpoint": DemoFault(
            title="Corrupt a checkpoint",
            description="Flip bytes in the newest committed one.",
            needs=("job",),
            run=_corrupt_checkpoint,
        ),
        "submit_another_job": DemoFault(
            title="Submit another job",
            description="It starts when enough devices are free.",
            needs=(),
            run=_submit_another,
        ),
    }
)
