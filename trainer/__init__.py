"""The built-in trainer: Megatron-core replicas that survive each other's failures.

Started by a rank host (`trainer.host`), spoken to over the agent's unix socket,
imported by nothing else but for its pure core (`trainer.core`), which the simulator runs too. Of the
control plane it imports `controlplane.protocol` only.
"""
