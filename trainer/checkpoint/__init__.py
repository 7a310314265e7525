"""Checkpoints: written by Megatron's torch_dist, committed by a marker, fenced by epoch.

`manifest` is pure and imports no torch: the control plane's side uses it to verify and
to choose what to resume from. The package itself imports nothing.
"""
