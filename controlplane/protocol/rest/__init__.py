"""What the REST API answers, as types: the SDK decodes with them, openapi.json is made
from them, and a test holds the server's real answers against them.

Instants are ISO-8601 UTC text (`*_at`), durations seconds (`*_s`), ratios 0..1. A
missing reading is None, never 0. Fields may be added within /api/v1, so readers ignore
fields that they don't know.
"""

from controlplane.protocol.rest.base import Accepted, Event, Health, Me, Part, Problem, Token, Told, Version
from controlplane.protocol.rest.fleet import (
    Device,
    DeviceCounts,
    DeviceSeries,
    Fault,
    HeldBy,
    Node,
    NodeDetail,
    Overview,
    Series,
)
from controlplane.protocol.rest.jobs import (
    Attempt,
    Checkpoint,
    DryRun,
    Job,
    JobDetail,
    Layout,
    Log,
    Rank,
    RankLive,
    Replica,
    Spare,
    SpecBody,
    Step,
)
from controlplane.protocol.rest.recovery import (
    Alternative,
    Certificate,
    Check,
    Command,
    Decision,
    Incident,
    IncidentDetail,
    Phase,
    RankLook,
    Signal,
)

__all__ = [
    "Accepted",
    "Alternative",
    "Attempt",
    "Certificate",
    "Check",
    "Checkpoint",
    "Command",
    "Decision",
    "Device",
    "DeviceCounts",
    "DeviceSeries",
    "DryRun",
    "Event",
    "Fault",
    "Health",
    "HeldBy",
    "Incident",
    "IncidentDetail",
    "Job",
    "JobDetail",
    "Layout",
    "Log",
    "Me",
    "Node",
    "NodeDetail",
    "Overview",
    "Part",
    "Phase",
    "Problem",
    "Rank",
    "RankLive",
    "RankLook",
    "Replica",
    "Series",
    "Signal",
    "Spare",
    "SpecBody",
    "Step",
    "Token",
    "Told",
    "Version",
]
