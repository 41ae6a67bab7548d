"""Plan files: a plan as YAML that people read and programs load, with the evidence for it.

Version 1: ``version``, ``plan`` (scopes with first, last, options; options of the whole step), ``evidence`` (free,
not read back).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from sktune.documents import Document, read_document
from sktune.errors import PlanError, SpaceError
from sktune.plan import Option, Plan
from sktune.superkernel_options import parse


class _ScopeEntry(Document):
    first: str
    last: str
    label: str = ""
    """For readers; the label follows from first and last."""
    options: dict[str, Option] | str = {}
    """By name, or as ``super_kernel(label, options)`` takes them."""


class _PlanEntry(Document):
    scopes: list[_ScopeEntry]
    options: dict[str, Option] = {}


class PlanFile(Document):
    """A plan file of version 1."""

    version: Literal[1]
    plan: _PlanEntry
    evidence: dict[str, Any] = Field(default_factory=dict)


def read_plan(path: Path) -> Plan:
    """Read the plan in ``path``.

    Raises:
        PlanError: no plan file; one line with file, line and key.
    """
    entry = read_document(path, PlanFile, PlanError).plan
    try:
        scopes = [{"first": s.first, "last": s.last, "options": _read(s.options)} for s in entry.scopes]
    except SpaceError as failure:
        raise PlanError(f"{path}: {failure}") from failure
    return Plan.from_dict({"scopes": scopes, "options": entry.options})


def _read(options: Mapping[str, Option] | str) -> Mapping[str, Option]:
    return parse(options) if isinstance(options, str) else options


def write_plan(plan: Plan, evidence: Mapping[str, Any]) -> str:
    """Return ``plan`` and its evidence as YAML."""
    scopes = [
        {
            "first": s.first,
            "last": s.last,
            "label": s.label,
            **({"options": dict(s.options)} if s.options else {}),
        }
        for s in plan.scopes
    ]
    options = {"options": dict(plan.options)} if plan.options else {}
    document = {"version": 1, "plan": {"scopes": scopes, **options}, "evidence": dict(evidence)}
    head = "# A plan for SuperKernel scopes, found by sktune. Apply it: sktune.apply(model, 'best_plan.yaml')\n"
    return head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
