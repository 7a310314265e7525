"""POST /agent/v1/enroll: a join token for a node's standing credential. Errors are problem+json."""

import json
import re
from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from controlplane.fleet.services import enroll_node
from controlplane.protocol.plain import first_fault
from controlplane.protocol.samples import DeviceInfo
from controlplane.runtime.errors import Conflict, Denied

MAX_BODY_BYTES = 16 * 1024
_NAME = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,98}[a-z0-9])?$")


@csrf_exempt
def enroll(request: HttpRequest) -> HttpResponse:
    """Body {"join_token", "node_name", "agent_version"?, "boot_id"?, "devices"?: [DeviceInfo]};
    answers 201 {"node_id", "credential"}, the credential shown this once.
    A node of that name that still lives is refused (409)."""
    if request.method != "POST":
        return _problem(request, 405, "method_not_allowed", "enrolment is a POST")
    if len(request.body) > MAX_BODY_BYTES:
        return _problem(request, 413, "too_large", f"the body may have {MAX_BODY_BYTES} bytes")
    body = _parse(request.body)
    errors = _faults(body)
    if errors:
        return _problem(request, 422, "invalid", "the enrolment request is faulty", errors)
    try:
        shown = enroll_node(
            name=body["node_name"],
            join_token=body["join_token"],
            version=body.get("agent_version", ""),
            devices=msgspec.convert(body.get("devices", []), list[DeviceInfo]),
        )
    except Denied as error:
        return _problem(request, 403, error.code, error.detail)
    except Conflict as error:
        return _problem(request, 409, error.code, error.detail)
    return JsonResponse({"node_id": shown.id, "credential": shown.secret}, status=201)


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _faults(body: Any) -> list[dict[str, str]]:
    """Every fault of the body at once."""
    if not isinstance(body, dict):
        return [{"pointer": "", "message": "the body is no JSON object", "fix": 'send {"join_token", "node_name"}'}]
    faults = []
    if not isinstance(body.get("join_token"), str) or not body["join_token"]:
        faults.append({"pointer": "/join_token", "message": "missing", "fix": "manage.py create_join_token makes one"})
    name = body.get("node_name")
    if not isinstance(name, str) or not _NAME.match(name):
        faults.append(
            {"pointer": "/node_name", "message": "not a host name", "fix": "a-z, 0-9, '-' and '.', at most 100"}
        )
    if not isinstance(body.get("agent_version", ""), str):
        faults.append({"pointer": "/agent_version", "message": "not a text", "fix": "leave it out"})
    unfit = first_fault(body)
    if unfit is not None:
        faults.append({"pointer": unfit[0], "message": unfit[1], "fix": "leave it out"})
    try:
        msgspec.convert(body.get("devices", []), list[DeviceInfo])
    except msgspec.ValidationError as error:
        faults.append({"pointer": "/devices", "message": str(error), "fix": "a list of DeviceInfo, see docs/protocol"})
    return faults


def _problem(
    request: HttpRequest, status: int, code: str, detail: str, errors: list[dict[str, str]] | None = None
) -> JsonResponse:
    request_id = getattr(request, "request_id", "")
    body = {
        "type": f"urn:holdfast:{code}",
        "title": code.replace("_", " "),
        "status": status,
        "detail": detail,
        "instance": request.path,
        "request_id": request_id,
        "errors": errors or [],
    }
    return JsonResponse(body, status=status, content_type="application/problem+json")
