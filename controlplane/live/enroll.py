"""POST /agent/v1/enroll: a join token lets a node leave its public key. Errors are problem+json."""

import json
import re
from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from controlplane.access.refusals import refusals
from controlplane.fleet.enrolment import Enrolment, enroll_node
from controlplane.fleet.keys import is_public_key
from controlplane.protocol.handshake import SIGNATURE_BYTES, decode_bytes
from controlplane.protocol.plain import first_fault
from controlplane.protocol.samples import DeviceInfo
from controlplane.runtime import counters, keys
from controlplane.runtime.address import client_address
from controlplane.runtime.errors import Conflict, Denied
from controlplane.runtime.requests import request_id_of

MAX_BODY_BYTES = 16 * 1024
_NAME = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,98}[a-z0-9])?\Z")
_TEXTS = {
    "agent_version": re.compile(r"^[ -~]{0,200}\Z"),
    "boot_id": re.compile(r"^[A-Za-z0-9_.:-]{0,64}\Z"),
    "machine_id": re.compile(r"^[A-Za-z0-9_.:-]{0,64}\Z"),
    "segment": re.compile(r"^[A-Za-z0-9_.:-]{0,63}\Z"),
}


@csrf_exempt
def enroll(request: HttpRequest) -> HttpResponse:
    """Body {"join_token", "node_name", "public_key", "proof", "old_key_proof"?, "agent_version"?,
    "boot_id"?, "machine_id"?, "segment"?, "devices"?: [DeviceInfo]}; answers 201 {"node_id",
    "server_keys"}: no secret in either direction but the token. A name that is known by another
    key is refused (409) unless that key or an administrator says so."""
    if request.method != "POST":
        return _problem(request, 405, "method_not_allowed", "enrolment is a POST")
    if len(request.body) > MAX_BODY_BYTES:
        return _problem(request, 413, "too_large", f"the body may have {MAX_BODY_BYTES} bytes")
    body = _parse(request.body)
    errors = _faults(body)
    if errors:
        return _problem(request, 422, "invalid", "the enrolment request is faulty", errors)
    try:
        node_id = enroll_node(_asked(request, body))
    except (Denied, Conflict) as error:
        _note_refusal(body["node_name"], error.detail)
        return _problem(request, 403 if isinstance(error, Denied) else 409, error.code, error.detail)
    return JsonResponse({"node_id": node_id, "server_keys": keys.server_public_keys()}, status=201)


def _note_refusal(name: str, detail: str) -> None:
    """Counted each time, written down by name and address once a minute, and so many a minute."""
    counters.count("?", "enrolment_refused", detail=f"{name}: {detail}")
    refusals.note("nobody", "node.enroll_refused", name, reason=detail)


def _asked(request: HttpRequest, body: dict[str, Any]) -> Enrolment:
    old = body.get("old_key_proof", "")
    return Enrolment(
        name=body["node_name"],
        join_token=body["join_token"],
        public_key=body["public_key"],
        proof=decode_bytes(body["proof"], SIGNATURE_BYTES),
        old_key_proof=decode_bytes(old, SIGNATURE_BYTES) if old else b"",
        boot_id=body.get("boot_id", ""),
        machine_id=body.get("machine_id", ""),
        segment=body.get("segment", ""),
        version=body.get("agent_version", ""),
        address=client_address(request),
        devices=msgspec.convert(body.get("devices", []), list[DeviceInfo]),
    )


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
        faults.append({"pointer": "/join_token", "message": "missing", "fix": "`holdfast join-token create` makes one"})
    name = body.get("node_name")
    if not isinstance(name, str) or not _NAME.match(name):
        faults.append(
            {"pointer": "/node_name", "message": "not a host name", "fix": "a-z, 0-9, '-' and '.', at most 100"}
        )
    for field, pattern in _TEXTS.items():
        text = body.get(field, "")
        if not isinstance(text, str) or not pattern.match(text):
            faults.append({"pointer": f"/{field}", "message": "not such a text", "fix": "leave it out"})
    if not isinstance(body.get("public_key"), str) or not is_public_key(body["public_key"]):
        fix = "the agent makes an Ed25519 key and sends its public half in base64url"
        faults.append({"pointer": "/public_key", "message": "not a public key", "fix": fix})
    for field in ("proof", "old_key_proof"):
        text = body.get(field, "")
        if (field == "proof" or text) and not _is_signature(text):
            faults.append({"pointer": f"/{field}", "message": "not a signature", "fix": "64 bytes in base64url"})
    unfit = first_fault(body)
    if unfit is not None:
        faults.append({"pointer": unfit[0], "message": unfit[1], "fix": "leave it out"})
    try:
        msgspec.convert(body.get("devices", []), list[DeviceInfo])
    except msgspec.ValidationError as error:
        faults.append({"pointer": "/devices", "message": str(error), "fix": "a list of DeviceInfo, see docs/protocol"})
    return faults


def _is_signature(text: Any) -> bool:
    try:
        return isinstance(text, str) and len(decode_bytes(text, SIGNATURE_BYTES)) == SIGNATURE_BYTES
    except ValueError:
        return False


def _problem(
    request: HttpRequest, status: int, code: str, detail: str, errors: list[dict[str, str]] | None = None
) -> JsonResponse:
    request_id = request_id_of(request)
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
