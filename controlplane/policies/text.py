"""A policy document as text: YAML, or JSON, which is YAML too."""

from typing import Any

import yaml

from controlplane.policy.document import Document
from controlplane.protocol.spec_text import SpecTextError, parse_yaml
from controlplane.runtime.errors import Invalid


def text_of(document: Document) -> str:
    """As YAML; an empty one says what it is."""
    if not document:
        return "{}  # every field has its default\n"
    plain: dict[str, Any] = dict(document)
    if "xid_overrides" in plain:
        plain["xid_overrides"] = {int(xid): word for xid, word in plain["xid_overrides"].items()}
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def document_of(text: str) -> object:
    """What the text says; nothing is {}. Raises Invalid for text that is no document."""
    try:
        found = parse_yaml(text.encode())
    except SpecTextError as error:
        why = str(error)
        raise Invalid("The text is no document.", errors=[{"pointer": "/text", "message": why, "fix": ""}]) from error
    return {} if found is None else found
