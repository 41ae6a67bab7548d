"""YAML documents written by users: read safely and checked, with mistakes located by file, line and key."""

from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from sktune.core.errors import BadInputError, nearest
from sktune.core.files import read_text
from sktune.core.plain_data import compose_yaml, yaml_values

MAX_SHOWN = 200
"""Characters of a wrong value that a message quotes."""


class Document(BaseModel):
    """Base of all checked documents: immutable, and unknown keys are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")


DocumentT = TypeVar("DocumentT", bound=Document)


def read_document(path: Path, schema: type[DocumentT], error: type[BadInputError]) -> DocumentT:
    """Read the YAML file at ``path`` and check it against ``schema``.

    Raises:
        BadInputError: of class ``error``; one line with file, line number and the nearest key.
    """
    text = read_text(path, error, "give the path of a YAML file")
    return parse_document(text, str(path), schema, error)


def parse_document(text: str, source: str, schema: type[DocumentT], error: type[BadInputError]) -> DocumentT:
    """Check YAML ``text`` against ``schema``; ``source`` names it in messages."""
    node = compose_yaml(text, source, error)
    duplicate = _duplicate_key(node)
    data = yaml_values(node, source, error)
    if not isinstance(data, dict):
        raise error(f"{source}: a mapping of keys is expected, got {type(data).__name__}")
    if duplicate:
        line = duplicate.start_mark.line + 1
        raise error(f"{source}:{line}: key {_shown(duplicate.value)} appears twice; keep one")
    try:
        return schema.model_validate(data)
    except ValidationError as failure:
        raise error(_describe(failure, source, node, schema)) from failure


def _duplicate_key(node: yaml.Node | None) -> yaml.ScalarNode | None:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    return key
                seen.add(key.value)
            if duplicate := _duplicate_key(value):
                return duplicate
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            if duplicate := _duplicate_key(item):
                return duplicate
    return None


def _describe(failure: ValidationError, source: str, node: yaml.Node | None, schema: type[Document]) -> str:
    first = failure.errors()[0]
    keys = [key for key in first["loc"] if isinstance(key, str | int)]
    line, path = _locate(node, keys)
    where = f"{source}:{line}" if line else source
    name = ".".join(str(key) for key in path) or "the document"
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown key {name!r}{nearest(str(keys[-1]), _keys_at(schema, path[:-1]))}"
    if first["type"] == "missing":
        return f"{where}: key {str(keys[-1])!r} is missing; add it"
    if first["type"] == "model_type":
        return f"{where}: {name}: a mapping of keys is expected, got {_shown(first['input'])}"
    if first["type"] == "too_short":
        return f"{where}: {name} must not be empty"
    return f"{where}: {name}: {first['msg'].lower().removeprefix('value error, ')}, got {_shown(first['input'])}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _locate(node: yaml.Node | None, keys: list[Any]) -> tuple[int, list[Any]]:
    """Return the 1-based line of the deepest key that exists, and the path to it."""
    line = node.start_mark.line + 1 if node else 0
    path: list[Any] = []
    for key in keys:
        if isinstance(node, yaml.MappingNode):
            entry = next(((k, v) for k, v in node.value if getattr(k, "value", None) == str(key)), None)
            if entry is None:
                continue  # pydantic names the branch of a union here, which is not in the document
            line, node = entry[0].start_mark.line + 1, entry[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            node = node.value[key]
            line = node.start_mark.line + 1
        else:
            continue
        path.append(key)
    return line, path


def _keys_at(schema: type[Document], path: list[Any]) -> list[str]:
    current: type[Document] | None = schema
    for key in path:
        if current is not None and isinstance(key, str):
            field = current.model_fields.get(key)
            current = _document_in(field.annotation) if field else None
    return list(current.model_fields) if current else []


def _document_in(annotation: Any) -> type[Document] | None:
    """Return the document class inside an annotation such as ``list[Scope] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, Document):
        return annotation
    return next((document for part in get_args(annotation) if (document := _document_in(part))), None)
