"""The peers: the same model, batch and data, kept training by somebody else's means."""
