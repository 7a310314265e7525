"""`holdfast bench fleet`: a fleet of agents that is only load, beside a control plane that is real.

`script` and `figures` are pure; `agent`, `hostile` and `generator` speak to servers, `stack` starts them, `watched`
reads what they cost, `run` joins it all. Needs neither GPUs nor ranks.
"""
