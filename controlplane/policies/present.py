"""Policies as the API answers them (`protocol.rest.policy`)."""

from typing import Any

import msgspec

from controlplane.policies import selectors
from controlplane.policies.models import FLEET, JOB, PROJECT, PolicyVersion
from controlplane.policies.text import text_of
from controlplane.policies.whose import Whose
from controlplane.policy.config import PolicyConfig
from controlplane.policy.document import DEFAULT, Document, Ground, changes
from controlplane.policy.fields import FIELDS, Field
from controlplane.policy.rules.registry import REMEDIAL
from controlplane.runtime.clock import iso
from controlplane.runtime.errors import NotFound


def policy(whose: Whose, ground: Ground) -> dict[str, Any]:
    """`rest.Policy`."""
    row = selectors.newest(whose.scope)
    document: Document = row.document if row is not None else {}
    levels = _levels(whose)
    config = levels[-1][1]
    job, project = whose.job, whose.project
    return {
        "project": whose.inside or (project.pk if project is not None else None),
        "job_id": job.pk if job is not None else None,
        "job_name": job.name if job is not None else None,
        "number": row.number if row is not None else 0,
        "version": config.version,
        "document": document,
        "text": text_of(document),
        "fields": [_field(field, levels) for field in FIELDS],
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


def diff(whose: Whose, before: int, after: int) -> dict[str, Any]:
    """`rest.PolicyDiff`. Raises NotFound."""
    pair = [selectors.config_in(whose, selectors.document(whose.scope, number)) for number in (before, after)]
    return {"before": before, "after": after, "changes": msgspec.to_builtins(changes(pair[0], pair[1]))}


def recorded(digest: str) -> dict[str, Any]:
    """`rest.RecordedPolicy`. Raises NotFound."""
    config = selectors.by_version(digest)
    if config is None:
        raise NotFound(f"no decision that is kept was made by a policy {digest!r}")
    numbers = selectors.versions(FLEET).filter(version=digest).order_by("number").values_list("number", flat=True)
    return {"version": digest, "changes": msgspec.to_builtins(changes(DEFAULT, config)), "numbers": list(numbers)}


def _levels(whose: Whose) -> list[tuple[str, PolicyConfig]]:
    """The defaults and the policy of each scope down to this one, by their kind."""
    above = selectors.above_of(whose)
    configs = [config for _, config in above.levels] if above is not None else []
    return list(zip(("default", FLEET, PROJECT, JOB), (DEFAULT, *configs, selectors.of(whose)), strict=False))


def _field(field: Field, levels: list[tuple[str, PolicyConfig]]) -> dict[str, Any]:
    values = [(kind, getattr(config, field.name)) for kind, config in levels]
    value = values[-1][1]
    return {
        "name": field.name,
        "group": field.group,
        "what": field.what,
        "unit": field.unit,
        "value": value,
        "default": values[0][1],
        "set_by": _set_by(values),
        "least": field.least,
        "most": field.most,
        "source": str(field.source),
        "because": field.because,
        "safer": str(field.safer),
    }


def _set_by(values: list[tuple[str, float]]) -> str:
    """The narrowest scope that changes what it finds."""
    pairs = zip(values[1:], values, strict=False)
    return next((kind for (kind, here), (_, above) in reversed(list(pairs)) if here != above), values[0][0])
