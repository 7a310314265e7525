"""The node agent: keeps one node's ranks alive, tells the control plane, obeys its orders.

`core` decides and is pure; `ranks`, `link` and `probes` touch the world; `runtime` joins
them. Imports nothing heavy: no Django, no torch.
"""

VERSION = "0.1.0"
