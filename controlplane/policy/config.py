"""The policy's knobs, each with its unit and where its value comes from.

`PolicyConfig` is frozen and names itself: `version` is a hash of its content, stored
with every decision, so that a reader can tell which policy spoke.
"""

import hashlib

import msgspec

from controlplane.protocol.states import Mode


class PolicyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One policy. Times in seconds, ratios 0..1, costs in GPU-seconds.

    Silence. `lease_s`: no lease of a node ends before this much silence, however short the
    job's steps are (`timeouts.lease_s`); what is ended and placed elsewhere waits for it.
    `witness_s`: others must have waited this long before a silent replica is left out, which
    can be taken back (S-design: 2 s). One that was left out again is taken back `rejoin_pause_s` later
    and no sooner, twice as late each time, at most `rejoin_pause_max_s` (`policy.flaps`).
    View protocol. `flush_timeout_s` for members that are silent as well,
    `flush_limit_s` for any member (prototype: 34 ms from view to install). `admit_patience_s`:
    so long an installed view is left to commit its first step before a joiner changes it.
    `view_way_s` from a decision until ranks have the view, `install_way_s` from their flushes
    until they have the install (0.15 s each where control plane and ranks share two cores): a
    joiner's view begins with a step that leaves time for both.
    `outer_error_grace_s`: a death explains an outer error if it is told within this
    time (feasibility 2.9: ~1 s); `max_reissues` views with unchanged members.
    Common causes. Most of a job late in one section at once is one finding, not acted on for
    `storage_limit_s` where they save, else for `common_limit_s`; one late in a save, or in a step at
    which another still is, is not judged before `common_grace_s`. Fewer, on several nodes, are left
    out and not ended for `few_limit_s`.
    Disruption budget. `correlated_fraction` of devices suspect, but at least `correlated_min_devices`, on at
    least `correlated_min_nodes` nodes in as many failure domains: one node that dies is no correlated failure;
    `max_acts` destructive acts of non-positive evidence in the window (reliability F22). `max_evictions`,
    `max_restarts`, `max_cordons`, `max_emergency_saves` of the fleet within an hour, `max_..._of_segment` of one
    failure domain (`policy.disruption`).
    Risk. `risk_precision`: measured share of alarms followed by a failure; 0 is unknown.
    Ends. `shrunk_stable_s` a smaller view has held, `quiet_incident_s` an incident without a
    change of membership was open, before either counts as over.
    Places. `bar_s`: so long a job starts nothing where a rank of its own ended in a way that
    accuses the place (policy.bars); a repair takes about that. `fresh_s`: a node that has said
    nothing for longer is used after all that speak.
    `save_first_s`: so long the last holders of the newest state may save it before they are ended
    for a device that still computes, where no save has been measured.
    Spares. A waiting rank host is warmed again every `warm_again_s` (agents let one go after four
    hours), and asked again after `warm_retry_s` where it did not come up; `spares_look_s` between
    looks at whether all are there.
    Pace. `follow_up_s` between two looks that both changed something; `capacity_retry_s`
    between looks for devices; `refused_retry_s` between starts of a slot that came to nothing
    more than `max_failed_starts` times, all for the checks of nodes.
    Preemption, values of our own until fleets have measured others. A job is not preempted within
    `preempt_min_runtime_s` of its attempt's start, `preempt_again_s` where it came back from a preemption,
    `preempt_retry_s` after one came to nothing; at most `max_preemptions_of_job` times within an hour,
    `max_preemptions_of_project` times those of one project, and `max_preemptions` times those of the fleet (as many as
    `max_acts`). None is for a job that is expected to start within
    `preempt_patience_s` anyway (the default grace of a spec).
    People. A recommendation that is expected to cost more than `second_approver_gpu_s` is carried out when two have
    approved it (100 GPU-hours, a value of our own). One about the fleet's own hardware is carried out where nobody has
    objected for `fleet_act_after_s` (0: it waits for a person).
    Costs. `default_*` stand in until this job's own times are measured.
    `xid_overrides`: site's action for an XID (a word of `xid.XidBucket`).
    `rule_modes`: per-rule ceiling on automation.
    """

    lease_s: float = 10.0
    witness_s: float = 2.0
    rejoin_pause_s: float = 5.0
    rejoin_pause_max_s: float = 80.0
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
    correlated_fraction: float = 0.10
    correlated_min_devices: int = 4
    correlated_min_nodes: int = 2
    max_acts: int = 20
    max_evictions: int = 100
    max_restarts: int = 60
    max_cordons: int = 40
    max_emergency_saves: int = 100
    max_evictions_of_segment: int = 50
    max_cordons_of_segment: int = 20
    emergency_fleet_fraction: float = 0.10
    risk_precision: float = 0.0
    default_step_s: float = 1.0
    default_start_s: float = 15.0
    default_catch_up_s: float = 10.0
    default_save_s: float = 1.0
    default_detect_s: float = 2.0
    repair_horizon_s: float = 3600.0
    storage_limit_s: float = 1800.0
    common_limit_s: float = 300.0
    few_limit_s: float = 60.0
    common_grace_s: float = 5.0
    warm_again_s: float = 10_800.0
    warm_retry_s: float = 300.0
    spares_look_s: float = 60.0
    save_first_s: float = 60.0
    bar_s: float = 3600.0
    fresh_s: float = 1.5
    hang_timeout_s: float = 60.0
    capacity_retry_s: float = 5.0
    preempt_min_runtime_s: float = 300.0
    preempt_again_s: float = 1800.0
    preempt_patience_s: float = 60.0
    preempt_retry_s: float = 60.0
    max_preemptions: int = 20
    max_preemptions_of_job: int = 2
    max_preemptions_of_project: int = 20
    fleet_act_after_s: float = 0.0
    second_approver_gpu_s: float = 360_000.0
    follow_up_s: float = 0.1
    stop_grace_s: float = 10.0
    xid_overrides: dict[int, str] = {}
    rule_modes: dict[str, Mode] = {}

    @property
    def content(self) -> str:
        """All of it as JSON: fields in their order, rows of tables sorted."""
        ordered = {
            "xid_overrides": {str(xid): self.xid_overrides[xid] for xid in sorted(self.xid_overrides)},
            "rule_modes": {rule: self.rule_modes[rule] for rule in sorted(self.rule_modes)},
        }
        return msgspec.json.encode(msgspec.to_builtins(self, str_keys=True) | ordered).decode()

    @property
    def version(self) -> str:
        """12 hex digits of the content; equal policies have equal versions."""
        return hashlib.sha256(self.content.encode()).hexdigest()[:12]
