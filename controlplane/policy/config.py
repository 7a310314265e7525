"""The policy's knobs, each with its unit and where its value comes from.

`PolicyConfig` is frozen and names itself: `version` is a hash of its content, stored
with every decision, so that a replay can tell which policy spoke.
"""

import hashlib

import msgspec

from controlplane.policy.errors import UnreachableThreshold
from controlplane.policy.risk import WEIGHTS, max_reachable
from controlplane.protocol.states import Mode


class PolicyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One policy. Times in seconds, ratios 0..1, costs in GPU-seconds.

    Silence. `lease_s`: a closed connection and this much silence end a node's lease
    (G4: 2.5 s is the goal for a confirmed silence with a witness; without one we wait
    5 x as long). `witness_s`: others must have waited this long (S-design: 2 s).
    View protocol. `flush_timeout_s` for members that are silent as well,
    `flush_limit_s` for any member (prototype: 34 ms from view to install). `admit_patience_s`:
    so long an installed view is left to commit its first step before a joiner changes it.
    `view_way_s` from a decision until ranks have the view, `install_way_s` from their flushes
    until they have the install (0.15 s each where control plane and ranks share two cores): a
    joiner's view begins with a step that leaves time for both.
    `outer_error_grace_s`: a death explains an outer error if it is told within this
    time (feasibility 2.9: ~1 s); `max_reissues` views with unchanged members.
    Governor. `storm_fraction` of devices suspect, but at least `storm_min_devices`;
    `max_acts` destructive acts of non-positive evidence in the window (reliability F22).
    Risk. `risk_precision`: measured share of alarms followed by a failure; 0 is unknown.
    `live_signals`: parts of the score that have a working source.
    Ends. `shrunk_stable_s` a smaller view has held, `quiet_incident_s` an incident without a
    change of membership was open, before either counts as over.
    Pace. `follow_up_s` between two looks that both changed something; `capacity_retry_s`
    between looks for devices; `refused_retry_s` between starts of a slot that came to nothing
    more than `max_failed_starts` times, all for the checks of nodes.
    Costs. `default_*` stand in until this job's own times are measured.
    `xid_overrides`: site's action for an XID ("fatal", "degraded", "application", "ignore").
    `rule_modes`: per-rule ceiling on automation.
    """

    lease_s: float = 10.0
    witness_s: float = 2.0
    flush_timeout_s: float = 5.0
    flush_limit_s: float = 30.0
    admit_patience_s: float = 1.0
    view_way_s: float = 0.2
    install_way_s: float = 0.25
    outer_error_grace_s: float = 1.0
    max_reissues: int = 3
    catch_up_limit_s: float = 600.0
    shrunk_stable_s: float = 5.0
    quiet_incident_s: float = 8.0
    start_backoff_s: float = 2.0
    start_backoff_max_s: float = 60.0
    max_failed_starts: int = 5
    refused_retry_s: float = 600.0
    storm_fraction: float = 0.10
    storm_min_devices: int = 4
    max_acts: int = 20
    emergency_fleet_fraction: float = 0.10
    risk_precision: float = 0.0
    live_signals: tuple[str, ...] = ("temperature", "memory", "errors", "power", "utilization_drop", "temp_rise")
    default_step_s: float = 1.0
    default_start_s: float = 15.0
    default_catch_up_s: float = 10.0
    default_save_s: float = 1.0
    default_detect_s: float = 2.0
    repair_horizon_s: float = 3600.0
    hang_timeout_s: float = 60.0
    capacity_retry_s: float = 5.0
    follow_up_s: float = 0.1
    stop_grace_s: float = 10.0
    xid_overrides: dict[int, str] = {}
    rule_modes: dict[str, Mode] = {}

    @property
    def version(self) -> str:
        """12 hex digits of the content; equal policies have equal versions."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:12]


def check_threshold(threshold: float, live_signals: tuple[str, ...]) -> None:
    """Refuse a risk threshold that no device could ever reach (S2.2: 0.95 with a dead
    error signal; the best possible score is then 0.75). Raises UnreachableThreshold."""
    reachable = max_reachable(live_signals)
    if threshold <= reachable:
        return
    dead = ", ".join(sorted(set(WEIGHTS) - set(live_signals))) or "none"
    raise UnreachableThreshold(
        f"risk threshold {threshold:.2f} can never be reached: the highest possible score is {reachable:.2f}"
        f" (signals without a source: {dead}); lower the threshold or connect the signal"
    )
