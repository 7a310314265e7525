"""What torch's own analyser says of the Flight Recorders that Holdfast has read.

`python -m trainer.second_opinion --dumps FILE --out FILE`: a JSON list of `FlightDump` in, an
`Opinion` out. The server runs it in the sandbox where torch is installed
(`controlplane.recovery.torch_analysis`), the benchmark `flight` calls `opinion`. It decides nothing.
Torch's analyser is given every help: groups and gloo's states repaired, dumps allowed to be
missing, and a stand-in for `tabulate`, without which it fails on coalesced transfers.
"""

import argparse
import contextlib
import io
import logging
from pathlib import Path
from typing import Any

import msgspec

from controlplane.protocol.flight import COMPLETED, ENDED, FlightDump, FlightEntry

VERSION = "2.10"
"""Of the dumps' form, as torch 2.13 writes it."""
MATCHED, STATE, SIZE = "FULLY_MATCHED", "COLLECTIVE_STATE_MISMATCH", "SIZE_OR_SYNTAX_MISMATCH"


class Opinion(msgspec.Struct, frozen=True):
    """Torch's kind of mismatch, or "failed: ..." where it has no answer, and the ranks it names."""

    kind: str
    ranks: tuple[int, ...]


def opinion(details: dict[str, dict[str, Any]]) -> Opinion:
    """Of dumps in torch's own form, with `host_name` and `rank`. Raises ImportError without
    torch's analyser."""
    from torch.distributed.flight_recorder.components import builder, config_manager, utils

    vars(utils)["tabulate"] = lambda table, **_: str(len(table))
    logging.getLogger("torch.distributed.flight_recorder").setLevel(logging.CRITICAL)
    options = config_manager.JobConfig().parse_args(["unused", "--allow-incomplete-ranks"])
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            found = builder.build_db(details, options, VERSION)
    except Exception as error:
        return Opinion(f"failed: {type(error).__name__}", ())
    for collective in found.collectives:
        odd = collective.mismatch_collectives or {}
        kinds = [each.type_of_mismatch.state.name for each in odd.values() if each.type_of_mismatch is not None]
        if kinds:
            return Opinion(kinds[0], tuple(sorted(odd)))
        if collective.missing_ranks:
            return Opinion(STATE, tuple(sorted(collective.missing_ranks)))
    # A transfer that does not fit is told by an operation that belongs to no collective.
    alone = [op for op in found.ncclcalls if op.collective_id is None]
    transfers = [op for op in alone if op.collective_type.partition(":")[2].startswith(("send", "recv", "coalesced"))]
    return Opinion(SIZE if transfers else MATCHED, tuple(sorted({op.global_rank for op in alone})))


def torch_form(dump: FlightDump) -> dict[str, Any]:
    """A repaired dump as torch writes one."""
    backend = dump.backends[0] if len(dump.backends) == 1 else "nccl"
    groups = {g.name: {"name": g.name, "desc": g.desc, "ranks": str(list(g.ranks))} for g in dump.groups}
    entries = [_entry(place, entry, groups[entry.group]["desc"], backend) for place, entry in enumerate(dump.entries)]
    return {
        "host_name": f"rank{dump.rank}",
        "rank": dump.rank,
        "version": VERSION,
        "pg_config": groups,
        "entries": entries,
    }


def _entry(place: int, entry: FlightEntry, desc: str, backend: str) -> dict[str, Any]:
    return {
        "record_id": place,
        "pg_id": 0,
        "process_group": (entry.group, desc),
        "collective_seq_id": 0 if entry.p2p else entry.number,
        "p2p_seq_id": entry.number if entry.p2p else 0,
        "op_id": place,
        "profiling_name": f"{entry.backend or backend}:{entry.operation}",
        "time_created_ns": place,
        "input_sizes": [list(size) for size in entry.input_sizes],
        "output_sizes": [list(size) for size in entry.output_sizes],
        "input_dtypes": list(entry.input_dtypes),
        "output_dtypes": list(entry.output_dtypes),
        "state": COMPLETED if entry.state == ENDED else entry.state,
        "retired": entry.given_up or entry.state in (COMPLETED, ENDED),
        "is_p2p": entry.p2p,
        "frames": [],
        "timeout_ms": 0,
    }


def main(argv: list[str] | None = None) -> int:
    """0; the answer is in the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dumps", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    dumps = msgspec.json.decode(options.dumps.read_bytes(), type=tuple[FlightDump, ...])
    try:
        found = opinion({f"rank{dump.rank}": torch_form(dump) for dump in dumps})
    except ImportError as error:
        found = Opinion(f"failed: this torch has no analyser ({error})", ())
    options.out.write_bytes(msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
