"""The values of a job's `spec.env`: sealed where they rest, opened for its owner and its ranks.

People put keys and passwords there. The names are plain, as they say what a job is given.
"""

from collections.abc import Mapping
from typing import Any

from controlplane.jobs.models import Job
from controlplane.runtime import at_rest
from controlplane.runtime.errors import Conflict

MASK = "***"
_LOST = (
    "the values of env were sealed with a HOLDFAST_SECRET_KEY that this server has no more: name it in"
    " HOLDFAST_SECRET_KEY_FALLBACKS, or submit the job again"
)
Json = dict[str, Any]


def sealed(spec: Json, job_id: str) -> Json:
    """A spec as it rests in the row of this job."""
    return with_env(spec, {name: at_rest.seal_text(value, _place(job_id, name)) for name, value in _of(spec).items()})


def opened(job: Job) -> dict[str, str]:
    """Names and values. Raises Conflict where they are lost."""
    try:
        return {name: at_rest.open_text(kept, _place(job.pk, name)) for name, kept in _of(job.spec).items()}
    except at_rest.Unreadable as error:
        raise Conflict(_LOST) from error


def opens(job: Job) -> bool:
    """A key of this server opens all of it."""
    try:
        opened(job)
    except Conflict:
        return False
    return True


def with_values(job: Job) -> Json:
    """The spec as its owner and administrators see it; names alone where the values are lost."""
    try:
        return with_env(job.spec, opened(job))
    except Conflict:
        return without_values(job.spec)


def without_values(spec: Json) -> Json:
    """The spec as those see it who neither own the job nor administer: of its environment the
    names alone."""
    return with_env(spec, dict.fromkeys(_of(spec), MASK))


def _of(spec: Json) -> Mapping[str, str]:
    values: Mapping[str, str] = spec["spec"].get("env") or {}
    return values


def with_env(spec: Json, env: Mapping[str, str]) -> Json:
    """The spec with this instead of its environment."""
    return spec | {"spec": spec["spec"] | {"env": dict(env)}}


def _place(job_id: str, name: str) -> str:
    return f"job/{job_id}/env/{name}"
