"""Text to a plain document: YAML or JSON, within limits, before anything looks at it.

Called by the REST edge and by `holdfast job validate`. Agents never import this.
Whatever the bytes are, the answer is a document or a `SpecTextError` in bounded time
and memory: aliases are weighed before they are followed, so a YAML bomb is refused
while it is still small.
"""

import json
from typing import Any, NoReturn

import yaml

from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.plain import first_fault

MAX_SPEC_BYTES = 1 << 20
MAX_DEPTH = 32
# A full spec has about 80 nodes; 128 variables and as many labels stay below 1,000.
MAX_NODES = 20_000

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class SpecTextError(ProtocolError):
    """The text is no document: not YAML or JSON, too large, or built to explode.
    `line` counts from 1; None where the fault has no place."""

    code = "spec_text"

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.line = line


def parse_json(data: bytes) -> object:
    """The document, or SpecTextError. Repeated keys and NaN are refused."""
    text = _decode(data)
    try:
        return _fit(json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant))
    except json.JSONDecodeError as error:
        raise SpecTextError(f"not JSON: {error.msg}", error.lineno) from error
    except RecursionError as error:
        raise SpecTextError(f"nested deeper than {MAX_DEPTH} levels") from error
    except SpecTextError:
        raise
    except ValueError as error:
        raise SpecTextError(f"not JSON: {error}") from error


def parse_yaml(data: bytes) -> object:
    """The one document of the text (JSON is YAML too), or SpecTextError."""
    text = _decode(data)
    try:
        _weigh(text)
        node = yaml.compose(text, Loader=Loader)
        if node is None:
            return None
        _refuse_repeated_keys(node)
        loader = Loader("")
        try:
            return _fit(loader.construct_document(node))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise SpecTextError(f"not YAML: {error.problem or error.context}", line) from error
    except (yaml.YAMLError, RecursionError, OverflowError, TypeError) as error:
        raise SpecTextError(f"not YAML: {type(error).__name__}") from error
    except SpecTextError:
        raise
    except ValueError as error:
        # Dates that do not exist and integers of thousands of digits end here.
        raise SpecTextError("not YAML: a value that looks like a date or a number is none; quote it") from error


def _decode(data: bytes) -> str:
    if len(data) > MAX_SPEC_BYTES:
        raise SpecTextError(f"{len(data)} bytes, the limit is {MAX_SPEC_BYTES}; a spec is a page, not an archive")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecTextError(f"not UTF-8 at byte {error.start}; save the file as UTF-8") from error


def _fit(document: object) -> object:
    """The document as it is. Raises SpecTextError for text or numbers that nothing can keep."""
    fault = first_fault(document)
    if fault is not None:
        raise SpecTextError(f"{fault[0] or 'the document'}: {fault[1]}")
    return document


def _weigh(text: str) -> None:
    """Count the nodes as if every alias were written out; refuse what grows or loops, and tags:
    a tag orders a conversion (`!!bool x`) that the text may not stand."""
    open_anchors: list[tuple[str | None, int]] = []
    weights: dict[str, int] = {}
    total = 0
    for event in yaml.parse(text, Loader=Loader):
        line = 0 if event.start_mark is None else event.start_mark.line + 1
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise SpecTextError(f"the tag {str(tag)[:64]!r}: a spec needs none; write the value without it", line)
        match event:
            case yaml.AliasEvent():
                if event.anchor not in weights:
                    raise SpecTextError("an alias to something not yet complete", line)
                total += weights[event.anchor]
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                open_anchors.append((event.anchor, total))
                total += 1
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                anchor, before = open_anchors.pop()
                if anchor is not None:
                    weights[anchor] = total - before
            case yaml.ScalarEvent():
                total += 1
                if event.anchor is not None:
                    weights[event.anchor] = 1
            case _:
                continue
        if total > MAX_NODES:
            raise SpecTextError(f"more than {MAX_NODES} values once its aliases are written out", line)
        if len(open_anchors) > MAX_DEPTH:
            raise SpecTextError(f"nested deeper than {MAX_DEPTH} levels", line)


def _refuse_repeated_keys(root: yaml.Node) -> None:
    """YAML readers keep the last of two equal keys; a user means one of them."""
    todo, done = [root], set[int]()
    while todo:
        node = todo.pop()
        if id(node) in done:
            continue
        done.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            todo.extend(node.value)
        if not isinstance(node, yaml.MappingNode):
            continue
        keys = set[str]()
        for key, value in node.value:
            todo += [key, value]
            if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
                continue
            if key.value in keys:
                raise SpecTextError(f"the key {key.value[:64]!r} is there twice", key.start_mark.line + 1)
            keys.add(key.value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) == len(pairs):
        return document
    keys = [key for key, _ in pairs]
    twice = next(key for key in keys if keys.count(key) > 1)
    raise SpecTextError(f"the key {twice[:64]!r} is there twice")


def _refuse_constant(name: str) -> NoReturn:
    raise SpecTextError(f"{name} is no number a spec can use")
