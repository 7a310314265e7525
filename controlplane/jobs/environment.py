"""The values of a job's `spec.env`: sealed where they rest, opened for its owner and its ranks.

People put keys and passwords there. The names are plain, as they say what a job is given.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from controlplane.jobs.models import Job
from controlplane.protocol.spec import JobSpec, TrainSpec
from controlplane.runtime import at_rest, keys
from controlplane.runtime.errors import Conflict

MASK = "***"
_TRIED_MAX = 4096
_tried: dict[bytes, bool] = {}
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
    """A key of this server opens all of it. Asked in each pass, tried once."""
    if not _of(job.spec):
        return True
    told = msgspec.json.encode([job.pk, _of(job.spec)])
    known = sha256(b"".join([*keys.rest_keys(), told])).digest()
    if known not in _tried:
        if len(_tried) >= _TRIED_MAX:
            _tried.clear()
        _tried[known] = _opens(job)
    return _tried[known]


def _opens(job: Job) -> bool:
    try:
        opened(job)
    except Conflict:
        return False
    return True


def told_to_policy(job: Job) -> TrainSpec:
    """The stored spec as types, without values: what the policy decides by is kept with the decision."""
    return msgspec.convert(without_values(job.spec), JobSpec).spec


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
