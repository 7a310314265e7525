"""Policies as the API answers them (`protocol.rest.policy`)."""

from typing import Any

import msgspec

from controlplane.jobs.models import Job
from controlplane.policies import selectors
from controlplane.policies.models import FLEET, PolicyVersion
from controlplane.policies.text import text_of
from controlplane.policy.config import PolicyConfig
from controlplane.policy.document import DEFAULT, Document, Ground, changes
from controlplane.policy.fields import FIELDS
from controlplane.policy.rules.registry import REMEDIAL
from controlplane.runtime.clock import iso
from controlplane.runtime.errors import NotFound


def policy(job: Job | None, ground: Ground) -> dict[str, Any]:
    """`rest.Policy`."""
    scope = job.pk if job is not None else FLEET
    row = selectors.newest(scope)
    document: Document = row.document if row is not None else {}
    fleet = selectors.of_fleet()
    config = selectors.of_job(scope) if job is not None else fleet
    return {
        "job_id": job.pk if job is not None else None,
        "job_name": job.name if job is not None else None,
        "number": row.number if row is not None else 0,
        "version": config.version,
        "document": document,
        "text": text_of(document),
        "fields": [_field(number, config, fleet) for number in range(len(FIELDS))],
        "modes": {rule: str(mode) for rule, mode in sorted(config.rule_modes.items())},
        "xids": {str(xid): word for xid, word in sorted(config.xid_overrides.items())},
        "rules": sorted(REMEDIAL),
        "measured": [
            {"field": name, "what": seen.what, "p99_s": seen.p99_s, "samples": seen.samples}
            for name, seen in sorted(ground.measured.items())
        ],
    }


def version(row: PolicyVersion) -> dict[str, Any]:
    """`rest.PolicyVersion`."""
    return {
        "number": row.number,
        "parent": row.parent,
        "restores": row.restores,
        "at": iso(row.at),
        "who": row.who,
        "reason": row.reason,
        "version": row.version,
        "document": row.document,
        "text": text_of(row.document),
    }


def diff(job: Job | None, before: int, after: int) -> dict[str, Any]:
    """`rest.PolicyDiff`. Raises NotFound."""
    scope = job.pk if job is not None else FLEET
    pair = [selectors.config_in(job, selectors.document(scope, number)) for number in (before, after)]
    return {"before": before, "after": after, "changes": msgspec.to_builtins(changes(pair[0], pair[1]))}


def recorded(digest: str) -> dict[str, Any]:
    """`rest.RecordedPolicy`. Raises NotFound."""
    config = selectors.by_version(digest)
    if config is None:
        raise NotFound(f"no decision that is kept was made by a policy {digest!r}")
    numbers = selectors.versions(FLEET).filter(version=digest).order_by("number").values_list("number", flat=True)
    return {"version": digest, "changes": msgspec.to_builtins(changes(DEFAULT, config)), "numbers": list(numbers)}


def _field(number: int, config: PolicyConfig, fleet: PolicyConfig) -> dict[str, Any]:
    field = FIELDS[number]
    value, of_fleet, default = (getattr(each, field.name) for each in (config, fleet, DEFAULT))
    return {
        "name": field.name,
        "group": field.group,
        "what": field.what,
        "unit": field.unit,
        "value": value,
        "default": default,
        "set_by": "job" if value != of_fleet else "fleet" if value != default else "default",
        "least": field.least,
        "most": field.most,
        "source": str(field.source),
        "because": field.because,
        "safer": str(field.safer),
    }
