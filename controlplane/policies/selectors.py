"""The policy in force, and those that were. Reads alone.

Asked by each pass: one query for the newest document of the fleet and of the job, whoever wrote it and on whichever
machine. What a document means is worked out once for each text.
"""

import json
from functools import lru_cache

from django.db.models import Max, QuerySet

from controlplane.jobs.models import Job
from controlplane.policies.models import FLEET, PolicyContent, PolicyVersion
from controlplane.policy.config import PolicyConfig
from controlplane.policy.document import DEFAULT, Document, config_of, from_content, narrowed
from controlplane.runtime.errors import NotFound

NOTHING = "{}"


def of_fleet() -> PolicyConfig:
    """The fleet's policy now."""
    return _fleet(_newest(FLEET).get(FLEET, NOTHING))


def of_job(job_id: str) -> PolicyConfig:
    """The policy of a job now: the fleet's, narrowed by its own document where it has one."""
    found = _newest(FLEET, job_id)
    return _job(found.get(FLEET, NOTHING), found.get(job_id, NOTHING))


def with_fleet(config: PolicyConfig, job_id: str | None) -> PolicyConfig:
    """A job's policy if this were the fleet's; None: the fleet's itself."""
    own = _newest(job_id).get(job_id) if job_id else None
    return config if own is None else narrowed(config, json.loads(own))


def config_in(job: Job | None, document: Document) -> PolicyConfig:
    """What a document that was checked makes of a job's policy (None: of the fleet's)."""
    return config_of(document) if job is None else narrowed(of_fleet(), document)


def by_version(version: str) -> PolicyConfig | None:
    """The policy with this hash; None: no decision that is kept was made by it, and no document had it."""
    text = PolicyContent.objects.filter(pk=version).values_list("content", flat=True).first()
    if text is not None:
        return from_content(text)
    return DEFAULT if version == DEFAULT.version else None


def versions(scope: str) -> QuerySet[PolicyVersion]:
    """Of a scope, newest first."""
    return PolicyVersion.objects.filter(scope=scope).order_by("-number")


def version(scope: str, number: int) -> PolicyVersion:
    """Raises NotFound."""
    row = PolicyVersion.objects.filter(scope=scope, number=number).first()
    if row is None:
        raise NotFound(f"there is no version {number} of this policy")
    return row


def newest(scope: str) -> PolicyVersion | None:
    """None: nobody has set anything."""
    return versions(scope).first()


def document(scope: str, number: int) -> Document:
    """0: the defaults, an empty document. Raises NotFound."""
    return {} if number == 0 else version(scope, number).document


def _newest(*scopes: str) -> dict[str, str]:
    """The text of the newest document of each scope that has one."""
    last = PolicyVersion.objects.filter(scope__in=scopes).order_by().values("scope").annotate(last=Max("pk"))
    rows = PolicyVersion.objects.filter(pk__in=last.values("last")).values_list("scope", "document")
    return {scope: json.dumps(found, sort_keys=True) for scope, found in rows}


@lru_cache(maxsize=64)
def _fleet(text: str) -> PolicyConfig:
    return config_of(json.loads(text))


@lru_cache(maxsize=1024)
def _job(fleet: str, own: str) -> PolicyConfig:
    return narrowed(_fleet(fleet), json.loads(own)) if own != NOTHING else _fleet(fleet)
