"""Reads plan files in programs: JSON, or YAML as sktune writes it. ``sktune.core.plan_file`` describes them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

from . import frontends
from .errors import PlanError, SpaceError, nearest
from .plain_yaml import read_yaml
from .plan import MarkedScope, check_disjoint, check_scope, label_of, options_of, scopes_of
from .superkernel_options import check_options, parse
from .task import DecodeCall, RankTask

VERSION = 1
KEYS = frozenset(
    ("version", "backend", "plan", "layers", "kinds", "decode", "artifacts", "target", "evidence", "shapes")
)
SHAPE_KEYS = frozenset(("batch", "context", "recipe", "plan", "calls", "decode", "artifacts", "target", "evidence"))
MAX_BYTES = 16 << 20
FIX = "set SKTUNE_PLAN to the path of a plan file"


def read_plan_file(path: str) -> tuple[RankTask, ...]:
    """Return the instructions of the plan file at ``path``, of several shapes one for each.

    A step tells its shape by the signature of its call. Shapes with equal signatures have the single plan if theirs
    differ. In a file with shapes that have none, the single plan counts for every call.

    Raises:
        PlanError: it cannot be read, or is not a plan file; one line.
    """
    document = _document(path)
    try:
        return _tasks(document)
    except (PlanError, SpaceError) as failure:
        raise PlanError(f"{path}: {failure}") from failure


def _document(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as failure:
        raise PlanError(f"{path} cannot be read ({failure.strerror}); {FIX}") from failure
    except ValueError as failure:  # also a null character in the path
        raise PlanError(f"{path} cannot be read ({failure}); {FIX}") from failure
    if len(data) > MAX_BYTES:
        raise PlanError(f"{path} cannot be read (it has more than {MAX_BYTES >> 20} MiB); give the right file")
    if os.path.splitext(path)[1] != ".json":
        return read_yaml(text.replace("\r\n", "\n"), path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as failure:
        raise PlanError(f"{path} is not JSON ({failure}); fix it") from failure


def _tasks(document: Any) -> tuple[RankTask, ...]:
    single = _task(document)
    shapes = document.get("shapes") or []
    if not isinstance(shapes, list) or not all(isinstance(shape, dict) for shape in shapes):
        raise PlanError("shapes must be a list of mappings; use the file as sktune wrote it")
    for shape in shapes:
        _check_keys(shape, SHAPE_KEYS, "a shape")
    tasks = tuple(_plan(shape, single.backend) for shape in shapes)
    calls: dict[DecodeCall, list[RankTask]] = {}
    for task in tasks:
        if task.decode is None or not task.decode.signature:
            return (single,)
        calls.setdefault(task.decode, []).append(task)
    alike = {call: all(each == of_call[0] for each in of_call) for call, of_call in calls.items()}
    return tuple(of_call[0] if alike[call] else replace(single, decode=call) for call, of_call in calls.items()) or (
        single,
    )


def _task(document: Any) -> RankTask:
    if not isinstance(document, dict):
        raise PlanError(f"a plan file is a mapping of keys, got {type(document).__name__}; see docs/reference/plan.md")
    if document.get("version") != VERSION or isinstance(document.get("version"), bool):
        raise PlanError(f"the version is {document.get('version')!r}, and only {VERSION} is known; use the same sktune")
    _check_keys(document, KEYS, "a plan file")
    backend = document.get("backend", frontends.REGIONS)
    if not isinstance(backend, str) or backend not in frontends.FRONTENDS:
        raise PlanError(f"there is no backend {backend!r}{nearest(str(backend), frontends.FRONTENDS)}")
    return _plan(document, backend)


def _plan(document: dict[str, Any], backend: str) -> RankTask:
    """Return the instructions of a plan file, or of one of its shapes."""
    plan, decode = document.get("plan"), document.get("decode")
    scopes, listed = [], plan
    if isinstance(plan, dict) and isinstance(plan.get("scopes"), list):
        # Options may be TorchAir's strings.
        listed = {**plan, "scopes": [
            {**scope, "options": parse(scope["options"])}
            if isinstance(scope, dict) and isinstance(scope.get("options"), str) else scope
            for scope in plan["scopes"]
        ]}  # fmt: skip
    for first, last, name, options in scopes_of(listed):
        check_scope(first, last, name)
        label = label_of(first, last, name)
        if backend == frontends.SUPERKERNELS:
            check_options(options)
        if backend == frontends.CAPTURED and options:
            raise PlanError(f"npugraph-ex has no options of single scopes; give those of {label} for the whole step")
        scopes.append(MarkedScope(first, last, label, options))
    check_disjoint(scopes)
    assert isinstance(plan, dict)
    _check_keys(plan, frozenset(("scopes", "options")), "a plan")
    options = options_of(plan.get("options") or {}, "a plan")
    call = _decode(decode)
    model = decode.get("model") if decode is not None else None
    return RankTask(False, backend, model, decode=call, scopes=tuple(scopes), options=options)


def _decode(entry: Any) -> DecodeCall | None:
    if entry is None:
        return None
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise PlanError(f"decode must have the function and the signature of the decode step, got {entry!r}")
    _check_keys(entry, frozenset(("function", "signature", "model")), "decode")
    if not entry.get("function"):
        raise PlanError("decode has no function; name the compiled function, or leave decode out")
    return DecodeCall(entry["function"], entry.get("signature", ""))


def _check_keys(mapping: dict[Any, Any], known: frozenset[str], owner: str) -> None:
    unknown = sorted(str(key) for key in mapping if key not in known)
    if unknown:
        raise PlanError(f"{owner} has no key {unknown[0]!r}{nearest(unknown[0], known)}")
