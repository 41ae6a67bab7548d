"""The published schemas, and how tests hold what sktune prints against them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

PUBLISHED = Path(__file__).parent.parent / "docs" / "schema" / "events-v1.json"


def published() -> dict[str, Any]:
    """Return the schema of all events."""
    schema: dict[str, Any] = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    return schema


def checked(lines: str) -> list[dict[str, Any]]:
    """Return the events that ``lines`` hold, one a line; each follows its schema."""
    events = [json.loads(line) for line in lines.splitlines()]
    check(events)
    return events


def check(events: Iterable[dict[str, Any]]) -> None:
    """Fail unless each event follows the schema of its kind."""
    schema = published()
    for event in events:
        assert event["event"] in schema["$defs"], f"{event['event']} has no schema"
        # Its own schema, not all of them: the message then names the key.
        own = {"$defs": schema["$defs"], "$ref": f"#/$defs/{event['event']}"}
        problem = next(iter(Draft202012Validator(own).iter_errors(event)), None)
        assert problem is None, f"{event['event']}: {problem.json_path if problem else ''} {problem}"
