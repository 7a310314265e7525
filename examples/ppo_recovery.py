"""Drive the PPO workload from your own code: train, lose a rank, recover, train on.

`python examples/ppo_recovery.py` runs it on the CPU in a few seconds. The controller forks
its ranks, so call it from a process without threads.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tempfile
from pathlib import Path

from trainer.workloads.ppo.session import import_everything, session
from trainer.workloads.ppo.settings import PpoSettings


def main() -> None:
    """One replica loses its first rank; the spare takes its place."""
    settings = PpoSettings(dp=2, pp=1, spares=1, global_batch=8, mini_batch=8)
    import_everything()
    with tempfile.TemporaryDirectory() as folder, session(settings, Path(folder)) as controller:
        controller.start()
        print(f"reward {controller.step().reward:.3f}")
        controller.save()
        controller.pool.kill([0])
        recovery = controller.recover()
        assert recovery is not None, "a rank was killed"
        print(f"{recovery.reason}; state from {recovery.sources}")
        print(f"reward {controller.step().reward:.3f}")


if __name__ == "__main__":
    main()
