"""Processes of the node: starting, watching, signalling and looking into them."""
