"""A policy document as text: YAML, or JSON, which is YAML too."""

from typing import Any

import yaml

from controlplane.policy.document import Document
from controlplane.policy.fields import BY_NAME, RULE_MODES, TABLES, XID_OVERRIDES
from controlplane.protocol.spec_text import SpecTextError, parse_yaml
from controlplane.runtime.errors import Invalid


def text_of(document: Document) -> str:
    """As YAML, in the sequence of the fields, as a database keeps none; an empty one says what it is."""
    if not document:
        return "{}  # every field has its default\n"
    plain: dict[str, Any] = {name: document[name] for name in (*BY_NAME, *TABLES) if name in document}
    if XID_OVERRIDES in plain:
        plain[XID_OVERRIDES] = {int(xid): word for xid, word in sorted(plain[XID_OVERRIDES].items(), key=_number)}
    if RULE_MODES in plain:
        plain[RULE_MODES] = dict(sorted(plain[RULE_MODES].items()))
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def _number(item: tuple[Any, Any]) -> int:
    return int(item[0])


def document_of(text: str) -> object:
    """What the text says; nothing is {}. Raises Invalid for text that is no document."""
    try:
        found = parse_yaml(text.encode())
    except SpecTextError as error:
        why = str(error)
        raise Invalid("The text is no document.", errors=[{"pointer": "/text", "message": why, "fix": ""}]) from error
    return {} if found is None else found
