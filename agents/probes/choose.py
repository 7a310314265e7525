"""The sampler that this agent's settings ask for."""

from agents.config import Config
from agents.log import note
from agents.probes.inherited import InheritedSampler
from agents.probes.sampler import InlineSampler, OnSamples, OnXid, ProcessSampler, Sampler
from agents.probes.simulated import SimulatedProbe


def make_sampler(config: Config, on_samples: OnSamples, on_xid: OnXid) -> Sampler:
    """Real devices through NVML, in a process of its own, or simulated ones; of an allocation only its own."""
    if config.inherited is None:
        return _driver(config, on_samples, on_xid)
    return InheritedSampler(config.inherited, lambda *calls: _driver(config, *calls), on_samples, on_xid)


def _driver(config: Config, on_samples: OnSamples, on_xid: OnXid) -> Sampler:
    if config.probe == "nvml":
        return ProcessSampler(on_samples, on_xid, note)
    probe = SimulatedProbe(
        count=config.devices,
        node_name=config.name,
        model=config.model,
        seed=config.seed,
        ambient_c=config.ambient_c,
    )
    return InlineSampler(probe, on_samples, on_xid)
