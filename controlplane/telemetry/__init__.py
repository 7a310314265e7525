"""Packed device history and the liveness of our own processes."""
