"""Writes the reference pages that are generated from code: ``python docs/generate.py``.

With ``--check`` nothing is written; the exit code is 1 if a page is out of date. A test does the same.
"""

import inspect
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import PlainSerializer
from pydantic.fields import FieldInfo
from typer.core import TyperGroup

from sktune.cli.app import load
from sktune.core.errors import ExitCode
from sktune.core.events.base import Absent, Event
from sktune.core.events.catalogue import EVENTS
from sktune.core.events.search import SEARCH_EVENTS, ModelsFinished
from sktune.core.events.workers import WORKER_EVENTS

DOCS = Path(__file__).parent
SCHEMA = DOCS / "schema" / "events-v1.json"
EVENTS_PAGE = DOCS / "reference" / "events.md"
CLI_PAGE = DOCS / "reference" / "cli.md"
EXIT_CODES_PAGE = DOCS / "reference" / "exit-codes.md"
COMMAND = "python docs/generate.py"

BEGIN, END = "<!-- from code: {name} -->\n", "<!-- end: {name} -->\n"
JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", NoneType: "null"}
JSON_WIDTH = 120
OPTION_TYPES = {str: "TEXT", list[str]: "TEXT", int: "NUMBER", float: "NUMBER", Path: "PATH"}

Schema = dict[str, Any]
STUDY: Schema = {"type": "string", "description": "With `--models`: the study's name."}
"""``print_event`` adds it to the events of searches that run side by side."""


def pages() -> dict[Path, str]:
    """Return the text of every generated page."""
    events = EVENTS_PAGE.read_text(encoding="utf-8")
    events = with_region(events, "events", event_tables())
    events = with_region(events, "values", value_table())
    return {
        SCHEMA: laid_out(schema()) + "\n",
        EVENTS_PAGE: events,
        CLI_PAGE: cli_page(),
        EXIT_CODES_PAGE: exit_codes_page(),
    }


def out_of_date() -> list[Path]:
    """Return the pages that are missing or out of date."""
    return [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def with_region(text: str, name: str, inner: str) -> str:
    """Return a page with the text between two marks replaced."""
    begin, end = BEGIN.format(name=name), END.format(name=name)
    before, opening, rest = text.partition(begin)
    _, closing, after = rest.partition(end)
    assert opening and closing, f"the page has no marks {begin.strip()} and {end.strip()}"
    return f"{before}{begin}\n{inner}\n{end}{after}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


# Events: each class, its fields and its docstring.


def schema() -> Schema:
    """Return the JSON Schema of all events, each under its own name, followed by the objects that they share."""
    values = values_of(EVENTS.values())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:sktune:events:1",
        "title": "A line that sktune prints with --json",
        "description": "Version 1. Each event is in $defs, under its own name.",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in EVENTS],
        "$defs": {name: event_schema(kind) for name, kind in EVENTS.items()}
        | {name: value_schema(kind) for name, kind in values.items()},
    }


def event_schema(kind: type[Event]) -> Schema:
    """Return the schema of one kind of event."""
    hints = get_type_hints(kind, include_extras=True)
    properties: dict[str, Schema] = {"event": {"const": kind.event}}
    required = list(properties)
    for field in fields(kind):
        if field.default is MISSING:
            required.append(field.name)
        if isinstance(field.default, bool):  # the key is left out if it has this value
            properties[field.name] = {"const": not field.default}
        else:
            absent = NoneType if field.default is None else Absent
            properties[field.name] = schema_of(_without(hints[field.name], absent))
    described_object = _object(kind, properties, required)
    if kind in (*SEARCH_EVENTS, *WORKER_EVENTS) and kind is not ModelsFinished:
        described_object["properties"].setdefault("study", STUDY)
    return described_object


def value_schema(kind: Any) -> Schema:
    """Return the schema of an object that is a value in events."""
    hints = get_type_hints(kind, include_extras=True)
    settings = {name: _settings(hint) for name, hint in hints.items()}
    names = {name: settings[name].get("alias", name) for name in hints if not settings[name].get("exclude")}
    properties = {
        key: schema_of(_without(hints[name], NoneType) if "exclude_if" in settings[name] else hints[name])
        for name, key in names.items()
    }
    return _object(kind, properties, [key for name, key in names.items() if "exclude_if" not in settings[name]])


def _settings(hint: Any) -> dict[str, Any]:
    """Return how pydantic writes a field of this type, apart from its type."""
    found = [each._attributes_set for each in getattr(hint, "__metadata__", ()) if isinstance(each, FieldInfo)]  # noqa: SLF001
    return dict(itertools.chain.from_iterable(each.items() for each in found))


def _object(kind: type, properties: Mapping[str, Schema], required: Sequence[str]) -> Schema:
    text, texts = described(kind)
    return {
        "description": text,
        "type": "object",
        "properties": {
            name: {**inner, "description": f"{texts[name][:1].upper()}{texts[name][1:]}"} if name in texts else inner
            for name, inner in properties.items()
        },
        "required": list(required),
        "additionalProperties": False,
    }


def schema_of(hint: Any) -> Schema:
    """Return the schema of a type."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in JSON_TYPES:
        return {"type": JSON_TYPES[hint]}
    if origin is Annotated:
        for each in hint.__metadata__:
            if isinstance(each, PlainSerializer):
                return schema_of(each.return_type)
        pairs = [each for each in hint.__metadata__ if isinstance(each, tuple)]
        keywords = {key: list(value) if isinstance(value, tuple) else value for key, value in pairs}
        return keywords if "enum" in keywords else schema_of(args[0]) | keywords
    if origin in (Union, UnionType):
        return _any_of([schema_of(arg) for arg in args])
    if origin is tuple and args[-1] is not ...:
        return {"type": "array", "items": schema_of(args[0]), "minItems": len(args), "maxItems": len(args)}
    if origin in (Sequence, tuple):
        return {"type": "array", "items": schema_of(args[0])}
    if origin is Mapping:
        names = {"propertyNames": schema_of(args[0])} if args[0] is not str else {}
        return {"type": "object", **names, "additionalProperties": schema_of(args[1])}
    if issubclass(hint, StrEnum):
        return {"enum": [str(member) for member in hint]}
    return {"$ref": f"#/$defs/{name_of(hint)}"}


def _any_of(schemas: list[Schema]) -> Schema:
    if all(isinstance(one.get("type"), str) for one in schemas) and sum(len(one) > 1 for one in schemas) <= 1:
        # A keyword such as "minimum" does not apply to null.
        return {key: value for one in schemas for key, value in one.items()} | {
            "type": [one["type"] for one in schemas]
        }
    return {"anyOf": schemas}


def _without(hint: Any, left_out: type) -> Any:
    if get_origin(hint) is Annotated:
        return Annotated[_without(get_args(hint)[0], left_out), *hint.__metadata__]
    if get_origin(hint) not in (Union, UnionType):
        return hint
    return Union[tuple(arg for arg in get_args(hint) if arg is not left_out)]  # noqa: UP007 - of any number of types


def values_of(kinds: Iterable[type]) -> dict[str, type]:
    """Return the objects that are values in ``kinds`` or in each other, by name."""
    objects: dict[str, type] = {}
    left = [hint for kind in kinds for hint in get_type_hints(kind, include_extras=True).values()]
    while left:
        hint = left.pop(0)
        left += get_args(hint)
        if isinstance(hint, type) and is_dataclass(hint) and name_of(hint) not in objects:
            objects[name_of(hint)] = hint
            left += get_type_hints(hint, include_extras=True).values()
    return dict(sorted(objects.items()))


def name_of(kind: type) -> str:
    """Return the name of a class in the schema."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower().removesuffix("_shown")


def described(kind: type) -> tuple[str, dict[str, str]]:
    """Return the first paragraph of a class's docstring, and the texts of its attributes, bases included."""
    texts: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        texts |= dict(_attributes(_docstring(each)))
    aliases = {name: _settings(hint).get("alias") for name, hint in get_type_hints(kind, include_extras=True).items()}
    texts |= {alias: texts[name] for name, alias in aliases.items() if alias}
    return " ".join(_docstring(kind).partition("\n\n")[0].split()), texts


def _docstring(kind: type) -> str:
    return inspect.cleandoc(kind.__dict__.get("__doc__") or "").replace("``", "`")


def _attributes(doc: str) -> Iterator[tuple[str, str]]:
    _, _, block = doc.partition("Attributes:\n")
    for entry in re.split(r"^    (?=\S)", block, flags=re.MULTILINE)[1:]:
        names, _, text = entry.partition(":")
        for name in names.replace("\n", " ").split(", "):
            yield name, " ".join(text.split())


def event_tables() -> str:
    """Return the table of all events."""
    first: dict[type, str] = {}
    rows = []
    for name, kind in EVENTS.items():
        text, keys = described(kind)[0], key_texts(kind, event_schema(kind))
        base = next(each for each in kind.__mro__ if Event in each.__bases__)
        if base in first:
            inherited = {field.name for field in fields(base)}
            keys = {key: meaning for key, meaning in keys.items() if key.rstrip("?") not in inherited}
            rows.append([f"`{name}`", text, "<br>".join([f"as `{first[base]}`", *_lines(keys)])])
        else:
            rows.append([f"`{name}`", text, "<br>".join(_lines(keys))])
        first.setdefault(base, name)
    return table(["event", "meaning", "keys"], rows)


def value_table() -> str:
    """Return the table of the objects that are values in events."""
    rows = []
    for name, kind in values_of(EVENTS.values()).items():
        keys = key_texts(kind, value_schema(kind))
        rows.append([f"`{name}`", described(kind)[0], "<br>".join(_lines(keys))])
    return table(["object", "meaning", "keys"], rows)


def key_texts(kind: type, of_kind: Schema) -> dict[str, str]:
    """Return a text for each key except the event's name: its docstring, its values, the object below it.

    A key that is not always present has a question mark.
    """
    texts = {}
    _, attributes = described(kind)
    for key, inner in of_kind["properties"].items():
        if key == "event":
            continue
        if inner is STUDY:
            continue  # the page says it once
        text = attributes[key]
        if values := [value for value in inner.get("enum", ()) if isinstance(value, str) and value]:
            text += f" One of {', '.join(f'`{value}`' for value in values)}."
        if objects := re.findall(r'"#/\$defs/(\w+)"', json.dumps(inner)):
            text += f" See `{objects[0]}`."
        texts[key if key in of_kind["required"] else f"{key}?"] = text
    return texts


def _lines(texts: Mapping[str, str]) -> list[str]:
    """Return a line for each key; neighbours with the same text share one."""
    return [
        f"{', '.join(f'`{key}`' for key in keys)}: {text}"
        for text, keys in itertools.groupby(texts, key=lambda key: texts[key])
    ]


def laid_out(value: Any, indent: int = 0) -> str:
    """Return JSON in which each value is on one line if it fits."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= JSON_WIDTH or not isinstance(value, dict | list):
        return line
    if isinstance(value, dict):
        inner = [f"{json.dumps(key)}: {laid_out(item, indent + 2)}" for key, item in value.items()]
    else:
        inner = [laid_out(item, indent + 2) for item in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    space = " " * indent
    return f"{first}\n" + ",\n".join(f"{space}  {item}" for item in inner) + f"\n{space}{last}"


# The command line: each command as typer describes it.


def cli_page() -> str:
    """Return the page of all commands and options."""
    head = (
        "# Command line\n\n"
        f"Generated from code by `{COMMAND}`. `sktune COMMAND --help` prints the same, and `sktune --version`\n"
        "prints the version. See also [exit codes](exit-codes.md).\n"
    )
    return head + "".join(f"\n{_command(name, command)}" for name, command in commands(load()))


def commands(command: Any, path: str = "sktune") -> Iterator[tuple[str, Any]]:
    """Yield every command with its full name, without groups."""
    for name, inner in command.commands.items():
        if isinstance(inner, TyperGroup):
            yield from commands(inner, f"{path} {name}")
        else:
            yield f"{path} {name}", inner


def _command(name: str, command: Any) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    usage = " ".join([name, "[OPTIONS]", *(_argument(param) for param in arguments)])
    parts = [f"## {name}\n", " ".join(command.help.split()) + "\n", f"    {usage}\n"]
    if arguments:
        rows = [[f"`{_word(param)}`", _default(param), param.help or ""] for param in arguments]
        parts.append(table(["argument", "default", "meaning"], rows))
    kinds = inspect.signature(command.callback).parameters
    groups: dict[str, list[list[str]]] = {}
    command.get_params(command.context_class(command))  # adds the groups of options that have none of their own
    for option in options:
        row = [_option(option, kinds[option.name].annotation), _default(option), option.help or ""]
        groups.setdefault(option.rich_help_panel or "option", []).append(row)
    parts += [table([group, "default", "meaning"], rows) for group, rows in groups.items()]
    return "\n".join(parts)


def _word(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _argument(argument: Any) -> str:
    word = _word(argument) + "..." * (argument.nargs == -1)
    return word if argument.required else f"[{word}]"


def _option(option: Any, kind: Any) -> str:
    words = ", ".join(f"`{word}`" for word in option.opts)
    value_kind = get_args(kind)[0]  # what follows in ``Annotated`` is typer's
    value_type = next(each for each in (*get_args(value_kind), value_kind) if each is not NoneType)
    return words if option.is_flag else f"{words} {OPTION_TYPES[value_type]}"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    return f"`{default}`" if default or (default == 0 and default is not False) else ""


# Exit codes.


def exit_codes_page() -> str:
    """Return the page of all exit codes."""
    rows = [[str(int(code)), code.last_line, code.meaning] for code in ExitCode]
    return (
        "# Exit codes\n\n"
        f"Generated from code by `{COMMAND}`. They have the same meaning for every command.\n\n"
        + table(["exit code", "last line of `--json`", "meaning"], rows)
        + "\nAny other: the process was killed. The same command continues a search.\n"
    )


def main() -> None:
    """Write the pages, or with ``--check`` only compare them."""
    old = out_of_date()
    if "--check" in sys.argv[1:]:
        for path in old:
            print(f"{path} is out of date; run: {COMMAND}")
        sys.exit(bool(old))
    new = pages()
    for path in old:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(new[path], encoding="utf-8")
        print(f"written: {path}")


if __name__ == "__main__":
    main()
