"""The built-in trainer: Megatron-core replicas that survive each other's failures.

Started by a rank host (`trainer.host`), spoken to over the agent's unix socket,
imported by nothing else. Of the control plane it imports `controlplane.protocol` only.
"""
