"""A policy document as text: YAML, or JSON, which is YAML too."""

from typing import Any

import yaml

from controlplane.policy.document import Document, plain
from controlplane.policy.fields import XID_OVERRIDES
from controlplane.protocol.spec_text import SpecTextError, parse_yaml
from controlplane.runtime.errors import Invalid


def text_of(document: Document) -> str:
    """As YAML, in the sequence of the fields, as a database keeps none; an empty one says what it is."""
    if not document:
        return "{}  # every field has its default\n"
    shown: dict[str, Any] = plain(document)
    if XID_OVERRIDES in shown:
        shown[XID_OVERRIDES] = {int(xid): word for xid, word in shown[XID_OVERRIDES].items()}
    return str(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True))


def document_of(text: str) -> object:
    """What the text says; nothing is {}. Raises Invalid for text that is no document."""
    try:
        found = parse_yaml(text.encode())
    except SpecTextError as error:
        why = str(error)
        raise Invalid("The text is no document.", errors=[{"pointer": "/text", "message": why, "fix": ""}]) from error
    return {} if found is None else found
