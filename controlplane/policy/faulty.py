"""Whether a decision is about a fault, so that it opens an incident.

Called by `recovery.incidents` and the simulator.
"""

from controlplane.policy.plan import Decision, ResolveIncident
from controlplane.policy.rules import registry
from controlplane.protocol.states import IncidentOutcome


def opens_incident(decision: Decision) -> bool:
    """It is about a fault (`registry.Rule`); everything else only joins what is open."""
    lost = any(isinstance(a, ResolveIncident) and a.outcome is IncidentOutcome.LOST for a in decision.actions)
    told = bool(decision.signal_ids and decision.actions) or decision.rule in registry.TOLD
    held = decision.choice == "hold" and decision.rule == "device_fault"
    return lost or ((told or held) and decision.rule in registry.FAULT and not decision.routine)
