"""A known end of a node as the policy sees it: when it leaves, who says so, and when it is back.

A row of `fleet.models.KnownEnd` that is not over. A fact, and no judgement: what follows of it is in `policy.leaving`.
"""

import msgspec

from controlplane.protocol.states import EndSource


class KnownEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`leaves_s`: from when on the node is away, `back_s`: until when (None: nobody knows); server Unix seconds.
    `said_s`: when that became known. `source`: its provider's notice, or a maintenance window that a person set;
    `reason`: in whose words."""

    id: str
    source: EndSource
    leaves_s: float
    said_s: float
    reason: str
    back_s: float | None = None
