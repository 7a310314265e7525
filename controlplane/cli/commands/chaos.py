"""holdfast chaos FAULT: break something, where the server runs as a demo."""

from typing import Annotated, Any

import typer

from controlplane.cli import columns, context
from controlplane.cli.commands.fleet import find
from controlplane.cli.context import Output
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.output import Format, emit_rows, say


def chaos(
    fault: Annotated[str | None, typer.Argument(metavar="[FAULT]", help="As `holdfast chaos` lists them.")] = None,
    job: Annotated[str | None, typer.Option(help="Default: the newest running job that allows faults.")] = None,
    replica: Annotated[int | None, typer.Option(help="Default: its last active replica.", min=0)] = None,
    rank: Annotated[int | None, typer.Option(help="Default: 0.", min=0)] = None,
    node: Annotated[str | None, typer.Option(help="Default: where that rank runs.")] = None,
    device: Annotated[int | None, typer.Option(help="Default: the one under that rank.", min=0)] = None,
    value: Annotated[str | None, typer.Option(help="Degrees, XID, seconds or process, as the fault says.")] = None,
    output: Output = Format.TABLE,
) -> None:
    """Break something on purpose, to see what happens. Without FAULT: what can be broken."""
    with context.client() as client:
        known = {row.kind: row for row in client.demo.faults().items}
        if fault is None:
            emit_rows(
                [context.plain(row) for row in known.values()], columns.FAULTS, output, context.screen(), name="kind"
            )
            return
        kind = fault.replace("-", "_")
        if kind not in known:
            raise CliError(f"no fault {fault!r}", fix="holdfast chaos lists them")
        target = aim(client, known[kind].needs, job=job, replica=replica, rank=rank, node=node, device=device)
        say(client.demo.inject(kind, value=_value(value), **target).detail)
    watched = target.get("job_id") or job
    context.next_commands("holdfast incident ls", *([f"holdfast job watch {watched}"] if watched else []))


def aim(client: Any, needs: list[str], **given: Any) -> dict[str, Any]:
    """Fields for the fault's needs; what was not given is of the newest running job that allows faults."""
    target: dict[str, Any] = {}
    if not needs:
        return target
    rank = None
    if "node" not in needs or given["node"] is None:
        if needs != ["job"]:
            rank = _some_rank(client, given["job"], given["replica"], given["rank"])
        target["job_id"] = _running_job(client, given["job"]).id
    if "replica" in needs and rank is not None:
        target |= {"replica": rank.replica, "rank": rank.rank}
    if "node" in needs:
        target.pop("job_id", None)
        target["node_id"] = rank.node_id if rank is not None else find(client, given["node"])
    if "device" in needs:
        chosen = given["device"]
        target["device_index"] = chosen if chosen is not None else (rank.device_index if rank is not None else 0)
    return target


def _running_job(client: Any, wanted: str | None) -> Any:
    if wanted is not None:
        return client.jobs.get(wanted)
    whole = (client.jobs.get(job.id) for job in client.jobs.list(state="running"))
    found = next((job for job in whole if job.spec["spec"]["resiliency"]["allow_faults"]), None)
    if found is None:
        fix = "give --job, or submit one with resiliency.allow_faults set to true"
        raise CliError("no job that allows faults runs", fix=fix, code=Exit.CONFLICT)
    return found


def _some_rank(client: Any, job: str | None, replica: int | None, rank: int | None) -> Any:
    chosen = _running_job(client, job)
    replicas = [r for r in client.jobs.replicas(chosen.id) if r.current and r.state == "active"]
    if replica is not None:
        replicas = [r for r in replicas if r.index == replica]
    ranks = [r for slot in replicas[-1:] for r in slot.ranks if rank is None or r.rank == rank]
    if not ranks:
        raise CliError(f"{chosen.name} has no such running rank", fix=f"holdfast job describe {chosen.name}",
                       code=Exit.NOT_FOUND)  # fmt: skip
    return ranks[0]


def _value(text: str | None) -> float | str | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
