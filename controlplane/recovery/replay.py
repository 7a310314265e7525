"""The journal made again: each recorded decision by its own policy, or by a candidate. Reads alone.

Rows are read in the order in which they were written; those of one pass share a snapshot, which is decided once. A page
ends after `limit` rows or `BUDGET_S`, and says where the next one begins. What no snapshot is kept of, what cannot be
read, and what asks for more of the fleet than was recorded is counted with the reason, never taken for equal.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import Any

from django.db.models import Q

from controlplane.policies import selectors as policies
from controlplane.policies.selectors import Candidate
from controlplane.policy.config import PolicyConfig
from controlplane.policy.continuable import answer_among, case_of
from controlplane.policy.fleet import FleetSnapshot
from controlplane.policy.plan import KEY_MAX, stored_key
from controlplane.policy.plan import Decision as Made
from controlplane.policy.replay import Difference, compared, differing, found, made_assuming
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.ids import make_id
from controlplane.protocol.rest.policy import ReplayCase
from controlplane.recovery.models import Decision
from controlplane.recovery.snapshots import unpacked
from controlplane.runtime.clock import now_s

BUDGET_S = 4.0
OF_FLEET = "what the fleet's own pass decides is not simulated"
COLUMNS = (
    "id", "job_id", "at", "rule", "choice", "reason_code", "sentence", "evidence", "alternatives", "actions",
    "cost_gpu_s", "routine", "mode", "key", "policy_version", "snapshot", "incident_id",
)  # fmt: skip
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Differs:
    """A recorded decision (or the first of the pass, for one that was added) and what becomes of it. `fields` that are
    not the same as in `before`, made `again` by its own policy; else `change` by the candidate, `assumed` that nothing
    more of the fleet was free than was recorded; `case`: from which it can be continued, by the policies `own` and
    `other`, or why it cannot."""

    decision_id: str
    job_id: str | None
    at: datetime
    fields: tuple[str, ...] = ()
    before: Row | None = None
    again: Made | None = None
    change: Difference | None = None
    assumed: bool = False
    case: ReplayCase | str = ""
    incident_id: str | None = None
    own: str = ""
    other: str = ""


@dataclass(slots=True)
class Page:
    """`replayed` decisions, of which `equal` are; `left_out` by reason. `after`: the id with which the next page
    begins; None: this was the last one. `policies` of cases, by their version; `rows` that were compared with a
    candidate; `last`: the id of the last one that was read."""

    replayed: int = 0
    equal: int = 0
    differs: list[Differs] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    after: str | None = None
    added: set[tuple[str | None, str]] = field(default_factory=set)
    policies: dict[str, PolicyConfig] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    last: str = ""


def replay(
    *,
    since_s: float,
    after: str = "",
    before: str = "",
    limit: int = 500,
    among: Q | None = None,
    candidate: Candidate | None = None,
) -> Page:
    """A page of the decisions of the last `since_s` seconds (of those `among` alone), oldest first, between the ids
    `after` and `before`."""
    first = after or make_id("dec", int((now_s() - since_s) * 1000.0), bytes(10))
    rows = Decision.objects.filter(among or Q(), id__gt=first).order_by("id")
    rows = rows.filter(id__lt=before) if before else rows
    page, began_s = Page(), time.monotonic()
    known: dict[str, PolicyConfig | None] = {}
    passes = [list(group) for _, group in groupby(rows.values(*COLUMNS)[:limit], key=_of_pass)]
    whole = sum(map(len, passes)) < limit
    # A pass is not torn in two: what it adds would be counted with both halves.
    for together in passes if whole or len(passes) == 1 else passes[:-1]:
        _pass(page, together, known, candidate)
        page.last = page.after = together[-1]["id"]
        if time.monotonic() - began_s > BUDGET_S:
            return page
    if whole:
        page.after = None
    return page


def _of_pass(row: Row) -> tuple[str | None, bytes]:
    return row["job_id"], bytes(row["snapshot"])


def _pass(page: Page, rows: list[Row], known: dict[str, PolicyConfig | None], candidate: Candidate | None) -> None:
    """What one pass decided, made again."""
    first = rows[0]
    version = first["policy_version"]
    if version not in known:
        known[version] = policies.by_version(version)
    own = known[version]
    if not first["snapshot"]:
        page.left_out["no snapshot is kept: a scheduled diagnostic"] += len(rows)
        return
    if own is None:
        page.left_out["the policy that decided is not kept: an earlier release"] += len(rows)
        return
    try:
        snapshot = _snapshot(first)
    except ValueError as error:
        page.left_out[str(error)] += len(rows)
        return
    if candidate is None:
        page.replayed += len(rows)
        page.differs += _again(page, rows, snapshot, own)
    else:
        _other(page, rows, snapshot, (own, candidate(first["job_id"])))


def _snapshot(row: Row) -> JobSnapshot | FleetSnapshot:
    blob = bytes(row["snapshot"])
    return unpacked(blob, FleetSnapshot) if row["job_id"] is None else unpacked(blob, JobSnapshot)


def _again(page: Page, rows: list[Row], snapshot: JobSnapshot | FleetSnapshot, own: PolicyConfig) -> Iterator[Differs]:
    made = _plan(snapshot, own)
    for row in rows:
        again = None if made is None else found(made, row["key"], row["mode"])
        fields = ("key",) if again is None else differing(row, again)
        if fields:
            yield Differs(row["id"], row["job_id"], row["at"], fields, row, again)
        else:
            page.equal += 1


def _row_of(by_key: dict[str, Row], made: Made) -> Row | None:
    """The recorded one; a release before this one cut long keys."""
    return by_key.get(stored_key(made.key)) or by_key.get(made.key[:KEY_MAX])


def _other(
    page: Page, rows: list[Row], snapshot: JobSnapshot | FleetSnapshot, pair: tuple[PolicyConfig, PolicyConfig]
) -> None:
    """By the recorded policy and by the candidate, on the same snapshot."""
    own, other = pair
    if own == other:
        page.replayed, page.equal, page.rows = page.replayed + len(rows), page.equal + len(rows), page.rows + rows
        return
    before, (after, assumed) = _plan(snapshot, own), made_assuming(snapshot, other)
    by_key = {row["key"]: row for row in rows}
    # What the pass found already made was not made by it: only its own decisions are compared.
    changes = [each for each in compared(before or (), after) if each.before is None or _row_of(by_key, each.before)]
    if before is None or (assumed and not changes):
        page.left_out["asks for more of the fleet than was recorded"] += len(rows)
        return
    page.replayed, page.rows = page.replayed + len(rows), page.rows + rows
    page.equal += len(rows) - sum(each.before is not None for each in changes)
    for change in changes:
        if change.after is not None and change.before is None:
            # What is not done in the record is decided again by each pass that follows.
            added = (rows[0]["job_id"], change.after.key)
            if added in page.added:
                continue
            page.added.add(added)
        row = (_row_of(by_key, change.before) if change.before is not None else None) or rows[0]
        recorded = change.before or answer_among(made for made in before if _row_of(by_key, made))
        case = case_of(snapshot, own, recorded, change.after) if isinstance(snapshot, JobSnapshot) else OF_FLEET
        differs = Differs(row["id"], row["job_id"], row["at"], change=change)
        page.policies |= {own.version: own, other.version: other} if not isinstance(case, str) else {}
        page.differs.append(
            replace(
                differs,
                assumed=assumed,
                case=case,
                incident_id=row["incident_id"],
                own=own.version,
                other=other.version,
            )
        )


def _plan(snapshot: JobSnapshot | FleetSnapshot, config: PolicyConfig) -> tuple[Made, ...] | None:
    """None: it asks for more of the fleet than the snapshot holds."""
    made, assumed = made_assuming(snapshot, config)
    return None if assumed else made
