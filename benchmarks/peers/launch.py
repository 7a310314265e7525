"""torchrun's command line for ranks on loopback. Called by both peers."""

from collections.abc import Sequence

from controlplane.demo.ports import free_port

LOOPBACK = "127.0.0.1"
QUIET = {
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "TORCH_CPP_LOG_LEVEL": "error",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONUNBUFFERED": "1",
    # A restart must not read the gloo addresses of the ranks before it: with the shared
    # store of torch 2.13 every restart of gloo ranks fails in connectFullMesh.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


def torchrun_argv(
    python: str, *, ranks: int, max_restarts: int, monitor_s: float, program: Sequence[str]
) -> tuple[str, ...]:
    """One torchrun that starts `ranks` processes of the module and arguments in `program`.

    The local address is given, because a look-up of the host's name can take 5 s."""
    return (
        python, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(ranks),
        "--max-restarts", str(max_restarts), "--monitor-interval", str(monitor_s),
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{LOOPBACK}:{free_port(LOOPBACK)}",
        "--local-addr", LOOPBACK, "-m", *program,
    )  # fmt: skip
