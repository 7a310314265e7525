"""Where Slurm and Holdfast differ about a node, in a sentence, and what Slurm is to be asked for. Pure.

What is asked for is `health`'s, as for the hooks that run on nodes. A node is marked bad once nothing runs on it, as a
drain ends a pilot and all under it; what somebody else drained is neither undone nor given another reason.
"""

from controlplane.engines.engine import IntentKind
from controlplane.engines.slurm import health
from controlplane.engines.slurm.health import Act, Believed, Node
from controlplane.protocol.plain import shown

MAX_QUOTED_CHARS = 200


def wanted(node: Node, believed: Believed, *, piloted: bool) -> IntentKind | None:
    """The intent that this node has now; None: none. `piloted`: its agents run in pilots alone."""
    if health.act(node, believed, may_undo=False, piloted=True) is Act.DRAIN:
        return IntentKind.MARK_BAD
    act = health.act(node, believed, may_undo=True, piloted=piloted)
    return IntentKind.CLEAR if act is Act.UNDRAIN else None


def differs(node: Node, believed: Believed, *, piloted: bool, pilot: str = "") -> str:
    """Where the two differ about the node, and what follows; "": they agree. `pilot`: what Slurm lists as running on
    it, "" for nothing."""
    out, state = node.revoked or node.state in health.OUT_OF_SERVICE, "revoked" if node.revoked else node.state
    if believed.drained and not out:
        return f"Slurm gives it no job ({cause(believed)}); Holdfast counts it as {node.state}. {_undo(believed)}"
    if out and not believed.drained:
        why = f": {_quoted(node.state_reason)}" if node.state_reason else ""
        then = "once nothing runs on it" if node.ranks or node.state == health.NodeState.DRAINING else "next"
        return f"Holdfast has it {state}{why}; Slurm would still give it jobs. It is drained in Slurm {then}."
    if believed.drained or node.connected:
        return ""
    if pilot:
        return f"Slurm lists pilot {pilot} as running on it; its agent is not connected to Holdfast."
    return "" if piloted else f"Slurm counts it as {words(believed)}; its agent is not connected to Holdfast."


def words(believed: Believed) -> str:
    """Of its state, as Slurm writes it."""
    return "+".join(sorted(believed.states))


def cause(believed: Believed) -> str:
    """Its state, why, and who set that when, as far as Slurm says."""
    if believed.reason is None:
        return f"{words(believed)}, with a reason that cannot be read"
    if not believed.reason:
        return f"{words(believed)}, no reason given"
    who = f", {believed.by}" if believed.by else ""
    since = f", {believed.since:%Y-%m-%d %H:%M:%S} UTC" if believed.since is not None else ""
    return f"{words(believed)}: {_quoted(believed.reason)}{who}{since}"


def _undo(believed: Believed) -> str:
    if believed.ours:
        return "The drain is Holdfast's own, and is undone once the node is known to be well."
    return "Holdfast leaves that alone: who drained it gives it back."


def _quoted(text: str) -> str:
    return shown(text[:MAX_QUOTED_CHARS]).rstrip(". ")
