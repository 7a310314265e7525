"""Which device a rank computes on, and the shim that lets Megatron run on the CPU.

One code path: on a CUDA machine every function here is the identity. `prepare_import`
must run before Megatron is imported anywhere, `activate` once in every rank.
Nothing here touches CUDA before `activate`, so that a rank host may fork.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def has_cuda() -> bool:
    """True on a machine with a usable GPU; asks NVML, creates no CUDA context."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    return torch.cuda.is_available()


def backend() -> str:
    """Collective backend of the inner world."""
    return "nccl" if has_cuda() else "gloo"


def prepare_import() -> None:
    """Make `torch.compile` the identity on the CPU: Megatron decorates with it while it is
    imported, which costs 1.7 s and 70 MB, and no compiled function runs in our models."""
    if has_cuda():
        return
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # Megatron's MoE is compiled by another way.

    def identity(model: Any = None, **_options: Any) -> Any:
        return model if model is not None else _same

    torch.compile = identity


def _same(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def activate(device_index: int) -> torch.device:
    """Select this rank's device, or install the CPU shim in this thread. Returns the device."""
    torch.set_num_threads(1)
    if has_cuda():
        torch.cuda.set_device(device_index)
        return torch.device("cuda", device_index)
    _install_cpu_shim()
    return CPU


def synchronize() -> None:
    """Wait for the device's queue; nothing on the CPU."""
    if has_cuda():
        torch.cuda.synchronize()


class _CpuDeviceMode(TorchFunctionMode):
    """Sends every request for a CUDA device to the CPU (the extension point that
    `torch.set_default_device` uses). `Tensor.type()` says torch.cuda.*, because
    Megatron's gradient clipping asserts on that text."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "device" in kwargs:
            kwargs = dict(kwargs, device=_to_cpu(kwargs["device"]))
        if kwargs.get("pin_memory"):
            kwargs = dict(kwargs, pin_memory=False)
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")
        return func(*args, **kwargs)


def _to_cpu(device: Any) -> Any:
    if isinstance(device, int):
        return CPU
    if isinstance(device, str) and device.startswith("cuda"):
        return CPU
    if isinstance(device, torch.device) and device.type == "cuda":
        return CPU
    return device


def _install_cpu_shim() -> None:
    torch.cuda.current_device = lambda: CPU  # type: ignore[assignment, return-value]
    torch.cuda.synchronize = lambda *_a, **_k: None  # type: ignore[assignment]
    # Megatron's re-run state machine keeps the device's generator beside the host's.
    torch.cuda.get_rng_state = lambda *_a, **_k: torch.empty(0, dtype=torch.uint8)
    torch.cuda.set_rng_state = lambda *_a, **_k: None
    _CpuDeviceMode().__enter__()
