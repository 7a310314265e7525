"""`python -m trainer.workloads.ppo --demo`, or a plain run without it. See docs/ppo.md."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
os.environ.setdefault("PYTHONWARNINGS", "ignore")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "error")

import argparse
import sys
import tempfile
import warnings
from contextlib import ExitStack
from pathlib import Path

import msgspec

from trainer.errors import TrainerError
from trainer.exits import ExitCode
from trainer.workloads.ppo.settings import PpoSettings, check

NUMBERS = (
    "dp",
    "tp",
    "pp",
    "spares",
    "global_batch",
    "mini_batch",
    "micro_batch",
    "epochs",
    "layers",
    "hidden",
    "seed",
)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainer.workloads.ppo", description=__doc__)
    parser.add_argument("--demo", action="store_true", help="kill a replica, recover, prove that nothing changed")
    parser.add_argument("--steps", type=int, default=3, help="steps in all (default 3)")
    parser.add_argument("--save-every", type=int, default=1, help="plain run: steps between checkpoints")
    parser.add_argument("--kill-replica", type=int, default=1, help="demo: data coordinate of the replica to kill")
    parser.add_argument("--during-step", action="store_true", help="demo: kill in the midst of a step")
    parser.add_argument("--folder", type=Path, help="logs and checkpoints (default: a temporary one)")
    parser.add_argument("--report", type=Path, help="demo: write the report as JSON")
    defaults = PpoSettings()
    for name in NUMBERS:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=getattr(defaults, name), help=f"default {getattr(defaults, name)}")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps must be at least 2: one before the loss, one after it")
    if not 0 <= options.kill_replica < options.dp:
        parser.error(f"--kill-replica must be below --dp {options.dp}")
    return options


def main() -> int:
    """0: done, and in a demo equal to the undisturbed run. 1: not equal. 93: bad settings."""
    options = _options()
    warnings.filterwarnings("ignore")
    settings = PpoSettings(**{name: getattr(options, name) for name in NUMBERS})
    try:
        check(settings)
    except TrainerError as error:
        print(f"settings: {error}", file=sys.stderr)
        return int(ExitCode.DO_NOT_REQUEUE)
    from trainer.workloads.ppo.controller import Phase
    from trainer.workloads.ppo.session import import_everything

    imported = Phase(name="import", seconds=import_everything(), note="once, for every process")
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ppo-")))
        if options.demo:
            return _demo(settings, folder, options, imported)
        return _plain(settings, folder, options)


def _demo(settings: PpoSettings, folder: Path, options: argparse.Namespace, imported: object) -> int:
    from trainer.workloads.ppo.demo import run_demo, table

    report = run_demo(
        settings, folder, steps=options.steps, replica=options.kill_replica, during_step=options.during_step
    )
    report = msgspec.structs.replace(report, phases=[imported, *report.phases])
    if options.report:
        options.report.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    print(table(report), flush=True)
    return 1 if report.faults else 0


def _plain(settings: PpoSettings, folder: Path, options: argparse.Namespace) -> int:
    from trainer.workloads.ppo.controller import StepResult
    from trainer.workloads.ppo.session import session

    def tell(result: StepResult) -> None:
        print(f"step {result.step}: reward {result.reward:.4f}, actor loss {result.actor_loss:.6f}", flush=True)

    with session(settings, folder, on_step=tell) as controller:
        controller.start()
        controller.run(options.steps, save_every=options.save_every)
    return 0


if __name__ == "__main__":
    sys.exit(main())
