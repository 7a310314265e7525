"""What would silently take fault tolerance away is refused at submit, with the way out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.protocol.launch_checks import LAUNCHERS, programs_of
from controlplane.protocol.spec_lint import lint
from tests.unit.protocol.test_spec_lint import broken, own_program, pointers

REFUSED = [
    ["torchrun", "--nproc-per-node=8", "train.py"],
    ["/opt/venv/bin/torchrun", "train.py"],
    ["python", "-m", "torch.distributed.run", "train.py"],
    ["python3.12", "-u", "-m", "torch.distributed.launch", "train.py"],
    ["accelerate", "launch", "train.py"],
    ["env", "OMP_NUM_THREADS=1", "srun", "python", "train.py"],
    ["timeout", "-k", "5", "3600", "mpirun", "python", "train.py"],
    ["bash", "-lc", "cd /data && torchrun train.py"],
    ["bash", "-c", "exec ft_launcher train.py"],
    ["env", "A=1", "sh", "-c", "ulimit -c 0; (torchrun train.py)"],
    ["nsys", "profile", "python", "train.py"],
]
ALLOWED = [
    ["python", "train.py"],
    ["python", "-u", "train.py", "-m", "torch.distributed.run"],
    ["python", "-m", "my.trainer", "--launcher", "torchrun"],
    ["bash", "-c", "exec python train.py"],
    ["numactl", "--cpunodebind=0", "python", "train.py", "srun"],
    ["./train"],
]


@pytest.mark.parametrize("argv", REFUSED, ids=" ".join)
def test_another_launcher_inside_ours_is_refused(argv: list[str]) -> None:
    assert pointers(broken(*own_program(*argv))) == ["/spec/entrypoint"]


@pytest.mark.parametrize("argv", ALLOWED, ids=" ".join)
def test_a_program_is_started_whatever_its_arguments_say(argv: list[str]) -> None:
    assert pointers(broken(*own_program(*argv))) == []


@given(st.lists(st.text(max_size=8), max_size=6))
def test_any_argv_is_judged(argv: list[str]) -> None:
    assert all(isinstance(name, str) for name in programs_of(argv))


@given(st.sampled_from(sorted(LAUNCHERS)), st.lists(st.sampled_from(["env", "A=1", "nohup", "-x", "5"]), max_size=4))
def test_a_launcher_is_seen_behind_any_prefixes(launcher: str, prefixes: list[str]) -> None:
    assert programs_of([*prefixes, launcher, "train.py"]) == (launcher,)


def test_replicas_of_a_program_that_never_exchange_gradients_are_refused_and_its_own_data_parallelism_is_not() -> None:
    """They would train diverging copies; after a death the new one began at step 0 beside the others."""
    replicas = broken(("/spec/entrypoint", ["python", "train.py"]), ("/spec/parallelism/dp", 4))
    (fault,) = lint(replicas).faults
    assert fault.pointer == "/spec/parallelism/dp"
    assert "4 replicas" in fault.message and "replica_dp" in fault.fix
    derived = broken(("/spec/entrypoint", ["python", "train.py"]), ("/spec/parallelism/dp", "auto"))
    assert pointers(derived) == ["/spec/parallelism/dp"]
    assert pointers(broken(*own_program())) == []


@pytest.mark.parametrize("name", ["TORCH_NCCL_RETHROW_CUDA_ERRORS", "NCCL_NVLS_ENABLE"])
def test_an_environment_in_which_no_communicator_can_be_aborted_is_refused(name: str) -> None:
    assert pointers(broken((f"/spec/env/{name}", "1"))) == [f"/spec/env/{name}"]
    assert pointers(broken((f"/spec/env/{name}", "0"))) == []
    assert pointers(broken((f"/spec/env/{name}", "1"), *own_program())) == []


def test_nccls_own_watchdog_must_outlast_the_limit_of_a_step() -> None:
    def told(**timeouts: float) -> list[str]:
        env = ("/spec/env", {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "120"})
        return pointers(broken(("/spec/resiliency", {"timeouts": timeouts}), env))

    assert told(step_s=60.0) == []
    assert told(step_s=120.0) == ["/spec/env/TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"]
    assert told(step_s=60.0, setup_s=60.0) == ["/spec/resiliency/timeouts/step_s"]
    assert all(fault.fix for fault in lint(broken(("/spec/resiliency", {"timeouts": {"step_s": 700.0}}))).faults)
