"""Checkpoints on the trust ladder."""
