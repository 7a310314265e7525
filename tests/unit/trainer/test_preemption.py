"""SIGTERM to a rank's whole process group: the rank hears it, its children go on for the save."""

import os
import signal
import subprocess
import sys

RANK = """
import sys, time
from torch.utils.data import DataLoader, Dataset
from trainer.control.preemption import Preemption
from trainer.exits import ExitCode
from trainer.train import leave

class Numbers(Dataset):
    def __len__(self): return 10_000
    def __getitem__(self, index):
        time.sleep(0.005)
        return index

preemption = Preemption()
preemption.listen()
batches = iter(DataLoader(Numbers(), batch_size=2, num_workers=2))
next(batches)
print("training", flush=True)
while not preemption.asked:
    next(batches)
for _ in range(20):
    next(batches)
print("saved", flush=True)
leave(ExitCode.SAVED_AND_LEFT, "told to end")
"""

CRASH = """
import multiprocessing, time
from trainer.control.preemption import Preemption

Preemption().listen()
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
worker.start()
raise RuntimeError("in the middle of an epoch")
"""

SPAWN = """
import multiprocessing, os, signal
from trainer.control.preemption import Preemption

if __name__ == "__main__":
    preemption = Preemption()
    preemption.listen()
    queue = multiprocessing.get_context("spawn").Manager().Queue()
    os.killpg(0, signal.SIGTERM)
    queue.put("saved")
    print(preemption.asked, queue.get(), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


def test_a_rank_with_data_loader_workers_lives_to_save_when_its_group_is_told_to_end() -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "training\n"
        os.killpg(rank.pid, signal.SIGTERM)
        said, errors = rank.communicate(timeout=60)
        assert (rank.returncode, said) == (15, "saved\n"), errors
    finally:
        rank.kill()


def test_a_program_that_ends_by_an_exception_does_not_wait_for_its_deaf_children() -> None:
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "in the middle of an epoch" in done.stderr


def test_a_spawned_helper_of_the_save_outlives_the_signal_too() -> None:
    argv = [sys.executable, "-c", SPAWN]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, start_new_session=True)
    assert done.stdout == "True saved set()\n", done.stderr
