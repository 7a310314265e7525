"""Nodes and their devices, as agents report them and people cordon them."""
