"""Which layouts train alike: `python -m trainer.matrix [--only NAME ...] [--back NAME ...]`.

For each model one process trains a few steps and keeps a checkpoint; it goes on from there,
and so does every layout. `--back` lets a layout keep a checkpoint in turn, from which a
single process goes on. What a layout changes is the order in which numbers are summed, so
each loss must agree with the single process to `TOLERANCE` (`BF16_TOLERANCE`). Starting from
one checkpoint makes the first weights the same: Megatron draws them per pipeline stage.

A layout with two samples in a micro-batch is held against a single process that takes them
one by one, so that samples which see each other show. A mixture balances its experts within
a micro-batch and trains differently for each size; there the single process takes two as well.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import importlib
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Literal

import msgspec

from controlplane.protocol.launch import Resume, TrainerConfig
from controlplane.protocol.spec import Checkpoint, Model, Parallelism, Training, ranks_per_replica
from trainer import device
from trainer.errors import TrainerError
from trainer.reference import TOLERANCE, Keep, Until, reference_losses

PRELOADED = ("torch._dynamo", "trainer.engine", "trainer.checkpoint.saver", "trainer.checkpoint.state")
"""Imported once for all the ranks that are forked; torch's first optimizer imports the first."""
WARM_STEPS, BACK_STEPS, LAYOUT_STEPS, STEPS = 2, 3, 4, 5
"""Committed steps at the first checkpoint, at the layout's own, at the layout's end, and at a
single process's. From a checkpoint on the first loss tells of what was loaded, the second of
the gradient and of the optimizer's state."""
MODELS = {
    "gpt": Model(layers=4, hidden=32, heads=4, kv_heads=2, sequence_length=32),
    "bert": Model(family="bert", layers=4, hidden=32, heads=4, sequence_length=32),
    "moe": Model(
        family="moe", layers=4, hidden=32, heads=4, ffn_hidden=64, experts=4, experts_per_token=2, sequence_length=32
    ),
}
# An odd number of micro-batches: shares inside a replica and of a pipeline come out uneven.
# A high rate: the first weights attend to all tokens nearly alike, and then it hardly shows in a
# loss which position a token was given (4e-6 with the usual rate, 2e-2 with this one).
TRAINING = Training(steps=12, global_batch=5, warmup_steps=2, learning_rate=3e-2, min_learning_rate=3e-3)
MICRO_BATCHES = TRAINING.global_batch
BF16_TOLERANCE = 1e-3
"""Absolute; bf16 rounds weights and activations to 1 in 256, and each order of summation elsewhere.
Five times the largest difference seen, and a twentieth of what a wrong position makes."""


class Case(msgspec.Struct, frozen=True):
    """What one row trains."""

    family: str
    layout: Parallelism
    micro_batch: int = 1
    dtype: Literal["fp32", "bf16"] = "fp32"

    @property
    def name(self) -> str:
        """`gpt tp2 pp2 vp2`."""
        sizes = {field: getattr(self.layout, field) for field in ("tp", "pp", "vp", "cp", "ep", "replica_dp")}
        words = [f"{field}{size}" for field, size in sizes.items() if size > 1]
        flags = {"sp": self.layout.sequence_parallel, "do": self.layout.distributed_optimizer}
        words += [word for word, raised in flags.items() if raised]
        words += [f"mb{self.micro_batch}"] if self.micro_batch > 1 else []
        words += [self.dtype] if self.dtype != "fp32" else []
        return " ".join([self.family, *words])

    @property
    def tolerance(self) -> float:
        """Absolute, of each loss."""
        return TOLERANCE if self.dtype == "fp32" else BF16_TOLERANCE

    @property
    def training(self) -> Training:
        """Always as many micro-batches a step."""
        return msgspec.structs.replace(
            TRAINING, global_batch=MICRO_BATCHES * self.micro_batch, micro_batch=self.micro_batch, dtype=self.dtype
        )

    @property
    def single(self) -> Training:
        """Of the process it is held against: the same samples a step."""
        return self.training if self.family == "moe" else msgspec.structs.replace(self.training, micro_batch=1)


FP32_LAYOUTS = (
    ("gpt", Parallelism(tp=2)),
    ("gpt", Parallelism(pp=2)),
    ("gpt", Parallelism(pp=4)),
    ("gpt", Parallelism(tp=2, pp=2)),
    ("gpt", Parallelism(pp=2, vp=2)),
    ("gpt", Parallelism(tp=2, pp=2, vp=2)),
    ("gpt", Parallelism(replica_dp=2)),
    ("gpt", Parallelism(pp=2, replica_dp=2)),
    ("gpt", Parallelism(pp=2, vp=2, replica_dp=2)),
    ("gpt", Parallelism(tp=2, sequence_parallel=True)),
    ("gpt", Parallelism(tp=2, pp=2, sequence_parallel=True)),
    ("gpt", Parallelism(tp=2, pp=2, vp=2, replica_dp=2, sequence_parallel=True)),
    ("gpt", Parallelism(cp=2)),
    ("gpt", Parallelism(cp=4)),
    ("gpt", Parallelism(pp=2, vp=2, cp=2, replica_dp=2)),
    ("gpt", Parallelism(tp=2, cp=2, sequence_parallel=True)),
    ("gpt", Parallelism(replica_dp=2, distributed_optimizer=True)),
    ("gpt", Parallelism(tp=2, replica_dp=2, distributed_optimizer=True)),
    ("gpt", Parallelism(pp=2, replica_dp=2, distributed_optimizer=True)),
    ("gpt", Parallelism(cp=2, replica_dp=2, distributed_optimizer=True)),
    ("gpt", Parallelism(tp=2, pp=2, vp=2, replica_dp=2, sequence_parallel=True, distributed_optimizer=True)),
    ("gpt", Parallelism(tp=2, pp=2, cp=2)),
    ("gpt", Parallelism(replica_dp=4, distributed_optimizer=True)),
    ("bert", Parallelism(tp=2)),
    ("bert", Parallelism(pp=2)),
    ("bert", Parallelism(pp=2, vp=2)),
    ("bert", Parallelism(replica_dp=2)),
    ("bert", Parallelism(cp=2)),
    ("bert", Parallelism(tp=2, pp=2, vp=2, cp=2)),
    ("bert", Parallelism(tp=2, pp=2, vp=2, replica_dp=2, distributed_optimizer=True)),
    ("moe", Parallelism(pp=2)),
    ("moe", Parallelism(pp=2, vp=2)),
    ("moe", Parallelism(replica_dp=2)),
    ("moe", Parallelism(replica_dp=2, ep=2)),
    ("moe", Parallelism(replica_dp=4, ep=2)),
    ("moe", Parallelism(pp=2, replica_dp=2, ep=2)),
    ("moe", Parallelism(pp=2, vp=2, replica_dp=2, ep=2)),
    ("moe", Parallelism(replica_dp=4, ep=2, distributed_optimizer=True)),
    ("moe", Parallelism(pp=2, replica_dp=2, ep=2, distributed_optimizer=True)),
    ("moe", Parallelism(tp=2, sequence_parallel=True)),
    ("moe", Parallelism(tp=2, cp=2, ep=2, sequence_parallel=True)),
    ("moe", Parallelism(cp=2, ep=2)),
    ("moe", Parallelism(cp=2, ep=4, replica_dp=2, distributed_optimizer=True)),
    ("moe", Parallelism(pp=2, vp=2, cp=2, ep=2)),
    ("moe", Parallelism(replica_dp=3, distributed_optimizer=True)),
    ("moe", Parallelism(tp=2, pp=2, vp=2, replica_dp=2, ep=2, sequence_parallel=True, distributed_optimizer=True)),
)
CASES = (
    *(Case(family, layout) for family, layout in FP32_LAYOUTS),
    Case("gpt", Parallelism(pp=2, cp=2), micro_batch=2),
    Case("bert", Parallelism(pp=2, cp=2), micro_batch=2),
    Case("moe", Parallelism(cp=2), micro_batch=2),
    Case("gpt", Parallelism(tp=2, replica_dp=2, distributed_optimizer=True), dtype="bf16"),
    Case("bert", Parallelism(cp=2, replica_dp=2, distributed_optimizer=True), dtype="bf16"),
    Case("moe", Parallelism(pp=2, ep=2, replica_dp=2), dtype="bf16"),
)


class Row(msgspec.Struct, frozen=True):
    """One layout. `difference`: the largest of its losses; `back`: of a single process that
    went on from its checkpoint. None: it did not run, or was not asked for. Neither may be
    above `tolerance`."""

    name: str
    ranks: int
    difference: float | None
    back: float | None
    tolerance: float
    took_s: float


def run(names: list[str], back: list[str]) -> list[Row]:
    """The rows of the layouts called `names` (none: of all), in the table's order; those in
    `back` ("all": each) go both ways. Raises TrainerError when a single process fails."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        known: dict[TrainerConfig, tuple[Keep, list[float]]] = {}
        for case in CASES:
            if names and case.name not in names:
                continue
            single = _config(case, Path(folder))
            if single not in known:
                start = Keep(WARM_STEPS, str(Path(folder) / f"start-{len(known)}"))
                known[single] = start, reference_losses(single, until=Until(STEPS), keep=start).losses
            both = "all" in back or case.name in back
            rows.append(_row(case, single, *known[single], both=both))
            print(_line(rows[-1]), flush=True)
    return rows


def _row(case: Case, single: TrainerConfig, start: Keep, wanted: list[float], *, both: bool) -> Row:
    difference = back = None
    began_s = time.monotonic()
    keep = Keep(BACK_STEPS, f"{start.path}-{case.name.replace(' ', '-')}") if both else None
    split = msgspec.structs.replace(single, parallelism=case.layout, training=case.training)
    try:
        difference = _difference(split, start, wanted[:LAYOUT_STEPS], keep)
        if keep is not None:
            back = _difference(single, keep, wanted, None)
    except TrainerError as error:
        print(f"{case.name}: {error}", file=sys.stderr, flush=True)
    return Row(case.name, ranks_per_replica(case.layout), difference, back, case.tolerance, time.monotonic() - began_s)


def _difference(config: TrainerConfig, start: Keep, wanted: list[float], keep: Keep | None) -> float:
    """The largest difference of a loss from `start` on, as far as `wanted` goes."""
    resumed = msgspec.structs.replace(config, resume=Resume(start.path, start.step))
    found = reference_losses(resumed, until=Until(len(wanted)), keep=keep).losses
    return max(abs(mine - theirs) for mine, theirs in zip(found, wanted[start.step :], strict=True))


def _config(case: Case, folder: Path) -> TrainerConfig:
    return TrainerConfig(
        model=MODELS[case.family],
        parallelism=Parallelism(),
        training=case.single,
        checkpoint=Checkpoint(),
        checkpoint_dir=str(folder / "checkpoints"),
        replicas=1,
        store="127.0.0.1:1",
    )


def _line(row: Row) -> str:
    cells = [row.name, str(row.ranks), *("-" if d is None else f"{d:.1e}" for d in (row.difference, row.back))]
    return f"| {' | '.join(cells)} | {row.took_s:.1f} |"


def main() -> int:
    """0 when every layout agrees with the single process."""
    parser = argparse.ArgumentParser(description="Losses of every layout against a single process.")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--back", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    device.prepare_import()
    for name in PRELOADED:
        importlib.import_module(name)
    print("| layout | ranks | largest difference | and back | seconds |\n|---|---|---|---|---|", flush=True)
    rows = run(options.only, options.back)
    if options.out is not None:
        options.out.write_bytes(msgspec.json.encode(rows))
    ran = all(row.difference is not None for row in rows)
    agree = all(difference <= row.tolerance for row in rows for difference in (row.difference, row.back) if difference)
    return 0 if ran and agree else 1


if __name__ == "__main__":
    sys.exit(main())
