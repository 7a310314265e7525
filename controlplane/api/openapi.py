"""openapi.json (3.1): Ninja's paths and parameters, joined with the types of
`protocol.rest`, the scope and the problems of every operation; and the page's table of those scopes.

    python -m controlplane.api.openapi --check | --write
"""

import copy
import json
import sys
from functools import cache
from pathlib import Path
from types import GenericAlias
from typing import Any, get_args

import msgspec
from django.http import HttpRequest, HttpResponse

from controlplane.api.problems import TABLE, TYPE_BASE
from controlplane.protocol import generated, rest, spec_schema
from controlplane.protocol.spec import JobSpec

TARGET = Path(__file__).with_name("openapi.json")
NEEDS = Path(__file__).resolve().parents[2] / "frontend" / "src" / "lib" / "needs.gen.ts"
PREFIX = "/api/v1"
ALWAYS = (400, 401, 403, 429, 500, 503)
REF = "#/components/schemas/{name}"
PROBLEM_TYPE = "application/problem+json"
TITLES = {
    200: "OK", 201: "Created", 202: "Accepted", 204: "Done", 304: "Not modified", 400: "Bad request",
    401: "Not signed in", 403: "Not allowed", 404: "Not found", 409: "Conflict", 410: "Gone", 412: "Changed meanwhile",
    413: "Too large", 415: "Unsupported media type", 422: "Not valid", 428: "Name what you have read",
    429: "Too many requests", 500: "Internal", 503: "Unavailable",
}  # fmt: skip


def document() -> dict[str, Any]:
    """The whole schema, with sorted keys so that a diff shows what changed."""
    from controlplane.api.app import api
    from controlplane.api.edge import EXTRA, Described

    made: dict[str, Any] = copy.deepcopy(dict(Described(api, "api/v1")))
    structs: dict[str, Any] = {"Problem": rest.Problem, "JobSpec": JobSpec}
    for operations in made["paths"].values():
        for operation in operations.values():
            _finish(operation, operation.pop(EXTRA), structs)
    names = sorted(structs)
    _, components = msgspec.json.schema_components([structs[name] for name in names], ref_template=REF)
    made["components"].setdefault("schemas", {}).update(_renamed(components))
    made["components"]["schemas"]["Problem"]["properties"]["type"]["enum"] = [TYPE_BASE + kind for kind in TABLE]
    made["components"]["responses"] = {
        f"Problem{code}": _response(code, {PROBLEM_TYPE: {"schema": _ref("Problem")}})
        for code in sorted(TITLES)
        if code >= 400
    }
    made["info"]["description"] = (
        "Control plane of resilient training fleets. Times are ISO-8601 UTC, durations seconds."
    )
    made["servers"] = []
    sorted_document: dict[str, Any] = json.loads(json.dumps(made, sort_keys=True))
    return sorted_document


def _renamed(components: dict[str, Any]) -> dict[str, Any]:
    """msgspec names two types of one name by their modules; an answer's goes by its own name, as
    the operations refer to it, a spec's gets `Spec` before it."""
    text = json.dumps(components)
    for name in components:
        module, _, last = name.rpartition(".")
        if module:
            short = last if module.startswith(rest.__name__) else f"Spec{last}"
            assert short not in components, f"{name}: {short} is taken"
            text = text.replace(json.dumps(name), json.dumps(short))
            text = text.replace(json.dumps(REF.format(name=name)), json.dumps(REF.format(name=short)))
    renamed: dict[str, Any] = json.loads(text)
    return renamed


def _finish(operation: dict[str, Any], extra: dict[str, Any], structs: dict[str, Any]) -> None:
    """Answer, body and problems of one operation."""
    status, answer, errors = extra["status"], extra["answer"], set(extra["errors"])
    responses: dict[str, Any] = {}
    content = None if answer is None else {extra["media_type"]: {"schema": _schema(answer, structs)}}
    responses[str(status)] = _response(status, content)
    if 200 in errors:
        structs["DryRun"] = rest.DryRun
        responses["200"] = _response(200, {"application/json": {"schema": _ref("DryRun")}})
    if 304 in errors:
        responses["304"] = _response(304, None)
    for code in sorted((errors | set(ALWAYS)) - {200, 304}):
        responses[str(code)] = {"$ref": f"#/components/responses/Problem{code}"}
    operation["responses"] = responses
    if extra["body"] is not None:
        operation["requestBody"] = _body(extra["body"], structs)
    if operation.get("security") is None:
        operation["security"] = []
    if extra["body"] is not None:
        operation.setdefault("parameters", []).append(_KEY)
    if 304 in errors:
        operation.setdefault("parameters", []).append(_header("If-None-Match", "An ETag: 304 where it still holds."))
    if 412 in errors:
        operation.setdefault("parameters", []).append(_header("If-Match", "An ETag: 412 where it holds no more."))


def _header(name: str, description: str) -> dict[str, Any]:
    return {
        "in": "header", "name": name, "required": False, "description": description, "schema": {"type": "string"},
    }  # fmt: skip


_KEY = {
    "in": "header",
    "name": "Idempotency-Key",
    "required": False,
    "description": "Any unique text; the same key and request is carried out once and answered again.",
    "schema": {"type": "string", "maxLength": 200},
}


def _take(kind: Any, structs: dict[str, Any]) -> None:
    """By its name, of which there is one: a second type of that name would stand for the first."""
    known = structs.setdefault(kind.__name__, kind)
    assert known is kind, f"{known.__module__} and {kind.__module__} both have a {kind.__name__}"


def _schema(answer: Any, structs: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(answer, GenericAlias):
        _take(answer, structs)
        return _ref(answer.__name__)
    item = get_args(answer)[0]
    _take(item, structs)
    return {
        "type": "object",
        "required": ["items", "next", "as_of_seq"],
        "properties": {
            "items": {"type": "array", "items": _ref(item.__name__)},
            "next": {"type": ["string", "null"]},
            "as_of_seq": {"type": "integer"},
            "total": {"type": ["integer", "null"]},
        },
    }


def _body(kind: Any, structs: dict[str, Any]) -> dict[str, Any]:
    if kind is rest.SpecBody:
        schema = _ref("JobSpec")
        return {
            "required": True,
            "content": {name: {"schema": schema} for name in ("application/json", "application/yaml")},
        }
    _take(kind, structs)
    return {"required": True, "content": {"application/json": {"schema": _ref(kind.__name__)}}}


def _response(status: int, content: dict[str, Any] | None) -> dict[str, Any]:
    return {"description": TITLES[status]} | ({} if content is None else {"content": content})


def _ref(name: str) -> dict[str, str]:
    return {"$ref": REF.format(name=name)}


@cache
def _encoded() -> bytes:
    return TARGET.read_bytes() if TARGET.is_file() else render().encode()


def render() -> str:
    """The file's text."""
    return json.dumps(document(), indent=1, sort_keys=True) + "\n"


def scopes(described: dict[str, Any]) -> dict[str, str]:
    """The scope that each operation of the document needs, by "METHOD /path"; "" where it needs none."""
    found: dict[str, str] = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            (scope,) = {role for way in operation["security"] for roles in way.values() for role in roles} or {""}
            found[f"{method.upper()} {path.removeprefix(PREFIX)}"] = scope
    return found


def render_needs(described: dict[str, Any]) -> str:
    """The page's table: what each act needs, and each read that needs more than to be signed in to read."""
    needed = {name.partition(" "): scope for name, scope in scopes(described).items() if scope}
    acts = {path: scope for (method, _, path), scope in needed.items() if method == "POST"}
    reads = {path: scope for (method, _, path), scope in needed.items() if method == "GET" and scope != "read"}
    text = "/* Generated from controlplane/api/openapi.json by `make generated`; do not edit. */\n"
    for name, rows in (("TO_ACT", acts), ("TO_READ", reads)):
        lines = "".join(f'  "{path}": "{scope}",\n' for path, scope in rows.items())
        text += f"export const {name} = {{\n{lines}}} as const;\n"
    return text


def serve(request: HttpRequest) -> HttpResponse:
    """GET /api/v1/openapi.json, for everybody."""
    return HttpResponse(_encoded(), content_type="application/json")


def serve_job_schema(request: HttpRequest) -> HttpResponse:
    """GET /api/v1/job.schema.json, for everybody: what a job spec may say."""
    return HttpResponse(spec_schema.text(), content_type="application/schema+json")


def main(argv: list[str]) -> int:
    """--write makes the file current; --check tells whether it is."""
    import django

    from controlplane.config.env import choose_settings_module

    choose_settings_module("embedded")
    django.setup()
    return generated.keep({TARGET: render(), NEEDS: render_needs(document())}, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
