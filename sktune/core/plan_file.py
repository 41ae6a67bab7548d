"""Plan files: a plan and the evidence for it, as YAML for people and programs.

Version 1: ``version``, ``backend`` (that the scopes are for), ``plan`` (scopes with first, last, options; options of
the whole step), ``evidence`` (free-form; only its fingerprint is read back). Since 0.2 also, if known: ``target`` (that
the plan was found for), ``artifacts`` (the compiled code beside the file: digest of each scope's code, the machine,
digest of each file), ``kinds`` (of the layers, as ``1 dense, 3 moe``).
"""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field

from sktune.core.codec import decoded, encoded
from sktune.core.delivery import Delivery
from sktune.core.documents import Document, read_document
from sktune.core.errors import PlanError, SpaceError
from sktune.core.plan import Option, Plan
from sktune.core.scope_flavour import ScopeFlavour
from sktune.core.scope_options import check_options, parse

ARTIFACTS = "best_plan.artifacts"
MAX_LAYERS = 10_000


def artifacts_of(key: object) -> str:
    """Return the name of the folder with the compiled code of one of several plans."""
    return f"{key}.artifacts"


def _read(options: Any) -> Any:
    try:
        return parse(options) if isinstance(options, str) else options
    except SpaceError as failure:
        raise ValueError(str(failure)) from failure


class _ScopeEntry(Document):
    first: str
    last: str
    label: str = ""
    """The scope's name in graphs and profiles; by default made of first and last."""
    options: Annotated[dict[str, Option], BeforeValidator(_read)] = {}
    """By name, or as the string that ``super_kernel(label, options)`` takes."""


class _PlanEntry(Document):
    scopes: list[_ScopeEntry]
    options: dict[str, Option] = {}


class DecodeEntry(Document):
    """The decode step among the compiled calls of a program; see ``sktune_program.task.DecodeCall``."""

    function: str
    signature: str = ""
    model: str | None = None
    """Class of the module tree, if it is not that of the function."""


class ArtifactsEntry(Document):
    """The compiled code that comes with a plan; see ``sktune.core.delivery.Delivery``."""

    folder: Annotated[str, Field(pattern=r"^[^/\\]*[^/\\.][^/\\]*$")]
    """Beside the plan file."""
    machine: dict[str, str] = {}
    code: dict[str, str]
    files: dict[str, str] = {}
    calls: dict[str, str] = {}

    def delivery(self) -> Delivery:
        """Return the entry's value."""
        return Delivery(self.code, self.machine, self.files, self.calls)


class TargetEntry(Document):
    """The target that the plan was found for, so that ``sktune recheck`` can build it again."""

    spec: dict[str, Any]
    """As ``sktune.targets.TargetSpec.to_dict`` returns it."""
    units: dict[str, Any] = {}
    """Fields of ``sktune.core.space.SpaceSpec`` that define which modules are units."""


class ShapeEntry(Document):
    """The plan to use at one shape, and what is known of it there; the fields mean what they mean in ``PlanFile``."""

    batch: Annotated[int, Field(ge=1)] | None = None
    context: Annotated[int, Field(ge=1)] | None = None
    recipe: str | None = None
    plan: _PlanEntry
    calls: dict[str, str] = {}
    """Types and shapes with which a decode step calls units, by name: by these a compiled step tells its shape."""
    decode: DecodeEntry | None = None
    artifacts: ArtifactsEntry | None = None
    target: TargetEntry | None = None
    evidence: dict[str, Any] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """The shape, as ``sktune.core.shapes.StepShape`` names it."""
        sizes = {"batch": self.batch, "context": self.context}
        return self.recipe or " ".join(f"{name}={value}" for name, value in sizes.items() if value is not None)


class PlanFile(Document):
    """A plan file of version 1."""

    version: Literal[1]
    backend: ScopeFlavour = ScopeFlavour.REGION
    plan: _PlanEntry
    layers: Annotated[int, Field(ge=1, le=MAX_LAYERS)] | None = None
    """Number of decoder layers of the model; ``sktune apply`` needs it to write a plan into source code."""
    kinds: Annotated[str, Field(pattern=r"^\d{1,4} [\w.-]+(, \d{1,4} [\w.-]+)*$")] | None = None
    """Kinds of the layers, in runs: ``1 dense, 3 moe``; ``sktune apply`` carries a plan to other layers by them."""
    decode: DecodeEntry | None = None
    """For ``sktune.launch``; without it, every compiled call of a model with the plan's units is a decode step."""
    artifacts: ArtifactsEntry | None = None
    target: TargetEntry | None = None
    evidence: dict[str, Any] = Field(default_factory=dict)
    shapes: list[ShapeEntry] = []
    """The plan of each shape, if it was found for several; then ``plan`` is the best single one for all of them."""

    def at(self, entry: ShapeEntry) -> "PlanFile":
        """Return the file of one of the shapes alone."""
        names = ("plan", "decode", "artifacts", "target", "evidence")
        return self.model_copy(update={name: getattr(entry, name) for name in names} | {"shapes": []})

    def entry_of(self, shape: str, source: str) -> ShapeEntry:
        """Return the entry of a shape by its name, or by those of its sizes that no other shape has.

        ``source`` names the file in the message.

        Raises:
            PlanError: there is none, or there are several.
        """
        wanted = set(shape.replace(",", " ").split())
        for entry in self.shapes:
            if entry.name == shape or set(entry.name.split()) == wanted:
                return entry
        matching = [entry for entry in self.shapes if not entry.recipe and wanted and wanted < set(entry.name.split())]
        if len(matching) == 1:
            return matching[0]
        if matching:
            which = " and ".join(entry.name for entry in matching)
            raise PlanError(f"{source} has several plans for the shape {shape!r}: name one of {which}")
        names = ", ".join(entry.name for entry in self.shapes) or "none: it is for a single one"
        raise PlanError(f"{source} has no plan for the shape {shape!r}; its shapes: {names}")

    @property
    def alone(self) -> list[tuple[str, "PlanFile"]]:
        """The plans in the file, each as a file of its own, with the name of its shape; empty if it is for all."""
        return [(entry.name, self.at(entry)) for entry in self.shapes] or [("", self)]

    @property
    def found_with(self) -> Mapping[str, str]:
        """The fingerprint of the study, versions among it; empty if the file does not say."""
        fingerprint = self.evidence.get("fingerprint")
        return fingerprint if isinstance(fingerprint, dict) else {}

    def to_plan(self) -> Plan:
        """Return the plan itself."""
        scopes = [{"first": s.first, "last": s.last, "options": s.options, "label": s.label} for s in self.plan.scopes]
        return decoded(Plan, {"scopes": scopes, "options": self.plan.options})


def read_plan_file(path: Path | str) -> PlanFile:
    """Read the plan file at ``path``.

    Raises:
        PlanError: it is not a plan file; one line with file, line and key.
    """
    file = read_document(Path(path), PlanFile, PlanError)
    try:
        _check_options(file)
    except SpaceError as failure:
        raise PlanError(f"{path}: {failure}") from failure
    return file


def _check_options(file: PlanFile) -> None:
    for entry in file.shapes:
        _check_options(file.at(entry))
    for scope in file.plan.scopes if file.backend is ScopeFlavour.SUPERKERNEL else ():
        check_options(scope.options)
    optioned = [scope.label for scope in file.plan.scopes if scope.options]
    if file.backend is ScopeFlavour.CAPTURED and optioned:
        raise SpaceError(f"npugraph-ex has no options of single scopes; give those of {optioned[0]} for the whole step")


def read_plan(path: Path | str) -> Plan:
    """Read the plan in ``path``; raises as ``read_plan_file`` does."""
    return read_plan_file(path).to_plan()


def runs_of_kinds(kinds: Sequence[str]) -> str:
    """Return the kinds of layers in runs: ``1 dense, 3 moe``."""
    return ", ".join(f"{len(list(run))} {kind}" for kind, run in groupby(kinds))


def write_plan(
    plan: Plan,
    evidence: Mapping[str, Any],
    backend: str = ScopeFlavour.REGION,
    kinds: Sequence[str] | int = (),
    decode: Mapping[str, str] | None = None,
    *,
    target: Mapping[str, Any] | None = None,
    delivery: Delivery | None = None,
    shapes: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the text of a plan file.

    Args:
        plan: the plan to write.
        evidence: for people to read.
        backend: that the scopes are for, ``inductor``, ``npu`` or ``npugraph-ex``.
        kinds: of each decoder layer of the model, or how many layers there are.
        decode: the decode step's function and signature in a program that sktune has started.
        target: that the plan was found for: fields of ``TargetEntry``.
        delivery: the compiled code that comes with the plan.
        shapes: the entries of the shapes, as ``plan_values`` returns them, each with its batch, context or recipe.
    """
    document = {
        "version": 1,
        "backend": str(backend),
        **plan_values(plan, evidence, decode, target=target, delivery=delivery),
        **({"layers": kinds if isinstance(kinds, int) else len(kinds)} if kinds else {}),
        **({"kinds": runs_of_kinds(kinds)} if kinds and not isinstance(kinds, int) else {}),
        **({"shapes": [dict(shape) for shape in shapes]} if shapes else {}),
    }
    order = ("version", "backend", "plan", "layers", "kinds", "decode", "target", "artifacts", "shapes", "evidence")
    head = (
        "# A plan for SuperKernel scopes, found by sktune. Apply it: sktune.apply(model, 'best_plan.yaml'),\n"
        "# or, to a recipe's program, as its report says.\n"
    )
    ordered = {name: document[name] for name in order if name in document}
    return head + yaml.dump(ordered, Dumper=_LineDumper, sort_keys=False, allow_unicode=True, width=math.inf)


def plan_values(
    plan: Plan,
    evidence: Mapping[str, Any],
    decode: Mapping[str, str] | None = None,
    *,
    target: Mapping[str, Any] | None = None,
    delivery: Delivery | None = None,
    folder: str = ARTIFACTS,
) -> dict[str, Any]:
    """Return what a plan file says of one plan, as plain values; the arguments are those of ``write_plan``.

    ``folder`` is the name of that of the compiled code, beside the plan file.
    """
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
    return {
        "plan": {"scopes": scopes, **options},
        **({"decode": dict(decode)} if decode else {}),
        **({"target": dict(target)} if target else {}),
        **({"artifacts": {"folder": folder, **encoded(delivery)}} if delivery else {}),
        "evidence": dict(evidence),
    }


class _LineDumper(yaml.SafeDumper):
    """Writes each scalar and each key on one line, and no aliases, as programs without PyYAML read it."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """See ``yaml.representer.BaseRepresenter``."""
        return True

    def check_simple_key(self) -> bool:
        """See ``yaml.emitter.Emitter``: labels may be longer than the 128 characters that it allows."""
        return super().check_simple_key() or isinstance(self.event, yaml.ScalarEvent)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if len(text.splitlines()) > 1 or text.endswith(("\n", "\r", "\x85", "\u2028", "\u2029")) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_LineDumper.add_representer(str, _represent_text)
