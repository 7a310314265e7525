"""A submitted body to a `JobSpec`, or to one problem that lists every fault."""

from typing import Any

import msgspec
from django.conf import settings
from django.http import HttpRequest

from controlplane.api.problems import Kind, Problem
from controlplane.protocol.rest import FieldError
from controlplane.protocol.spec import JobSpec
from controlplane.protocol.spec_fault import Ground
from controlplane.protocol.spec_lint import LintResult, lint
from controlplane.protocol.spec_text import SpecTextError, parse_json, parse_yaml
from controlplane.runtime import shards

YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})
FLEET = "fleet"
"""The sentinel's picture of what the fleet as a whole can report."""
JSON_TYPES = frozenset({"application/json", ""})


def read(request: HttpRequest) -> LintResult:
    """Parse and lint. Raises Problem: 415, 413, or 400 for text that is no document."""
    if request.content_type not in YAML_TYPES | JSON_TYPES:
        raise Problem(
            Kind.UNSUPPORTED_MEDIA_TYPE, f"Send application/yaml or application/json, not {request.content_type}."
        )
    parse = parse_yaml if request.content_type in YAML_TYPES else parse_json
    try:
        ground = Ground(
            checkpoint_roots=settings.CHECKPOINT_ROOTS,
            local_roots=settings.LOCAL_ROOTS,
            reachable_risk=reachable_risk(),
        )
        return lint(parse(request.body), ground)
    except SpecTextError as error:
        raise Problem(Kind.BAD_REQUEST, str(error)) from error


def reachable_risk() -> float:
    """What the devices here can score at most, by the readings that they give now; 1 while none was scored, and while
    a shard of the sentinel is not heard: its devices may score more than all others can."""
    parts = shards.read_parts(FLEET)
    if not all(parts):
        return 1.0
    told = [part.get("reachable_risk") for part in parts]
    return max((float(each) for each in told if isinstance(each, int | float)), default=1.0)


def required(result: LintResult) -> JobSpec:
    """The spec. Raises Problem with all faults."""
    if result.spec is not None:
        return result.spec
    count = len(result.faults)
    detail = "1 fault; nothing was submitted." if count == 1 else f"{count} faults; nothing was submitted."
    raise Problem(Kind.INVALID_SPEC, detail, errors=told(result))


def told(result: LintResult) -> list[FieldError]:
    """Faults as the problem's errors."""
    return [FieldError(fault.pointer, fault.message, fault.fix) for fault in result.faults]


def dry_run(result: LintResult, placement: list[Any] | None, waits_for: str) -> dict[str, Any]:
    """What a submit would do, with the defaults marked."""
    return {
        "spec": None if result.spec is None else msgspec.to_builtins(result.spec),
        "defaults": list(result.defaults),
        "placement": placement,
        "waits_for": waits_for,
        "faults": msgspec.to_builtins(told(result)),
    }
