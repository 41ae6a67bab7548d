"""The front ends that compile a program's decode step: how the program calls them for a plan, and their scopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import npugraph_ex, vllm
from .bytecode import without_bytecode
from .errors import PlanError, described
from .inductor.versions import problem_with
from .task import RankTask

REGIONS, SUPERKERNELS, CAPTURED = "inductor", "npu", "npugraph-ex"
"""The names of ``backend`` in tasks and plan files."""
Prepared = tuple[Mapping[str, Any], Callable[..., Any]]


@dataclass(frozen=True)
class Frontend:
    """A front end.

    Attributes:
        prepared: takes a task with its scopes, and the keywords with which the program calls ``torch.compile`` on the
            decode step. Changes what else the program calls in this process, and returns the keywords to use and the
            function that makes a scope of a label and options. Raises ``PlanError`` if the program compiles for another
            front end, or lacks what this one needs.
        environment: variables that a program with a plan needs.
    """

    prepared: Callable[[RankTask, Mapping[str, Any]], Prepared]
    environment: Mapping[str, str] = field(default_factory=dict)


def _regions(task: RankTask, keywords: Mapping[str, Any]) -> Prepared:  # noqa: ARG001 - sktune compiles the step itself
    import torch

    if problem := problem_with(torch.__version__):
        raise PlanError(problem)
    try:
        with without_bytecode():
            from .inductor.compiled_regions import compile_marked
            from .inductor.marks import InductorScope
    except ImportError as failure:
        raise PlanError(
            f"this torch's Inductor lacks what sktune needs of it ({described(failure)}); "
            "use another torch in the program's Python, or search for another backend"
        ) from failure
    return {"backend": compile_marked, "fullgraph": True, "dynamic": False}, InductorScope


def _superkernels(task: RankTask, keywords: Mapping[str, Any]) -> Prepared:  # noqa: ARG001
    from .marks import torchair_scope

    if keywords.get("backend") == npugraph_ex.NPUGRAPH_EX:
        raise PlanError(
            "the plan is for GE graphs, but the program compiles its decode step with npugraph_ex; "
            "use the mode that the plan was made in, or search with the backend npugraph-ex"
        )
    return keywords, torchair_scope


def _captured(task: RankTask, keywords: Mapping[str, Any]) -> Prepared:
    from .marks import npugraph_ex_scope

    has_scopes = bool(task.scopes)
    if vllm.compiles(keywords):  # vLLM-Ascend's configuration says whether kernels are static
        vllm.prepare(task.options, has_scopes=has_scopes)
        return keywords, npugraph_ex_scope
    return npugraph_ex.program_keywords(task.options, keywords, has_scopes=has_scopes), npugraph_ex_scope


FRONTENDS: Mapping[str, Frontend] = {
    REGIONS: Frontend(_regions),
    SUPERKERNELS: Frontend(_superkernels),
    CAPTURED: Frontend(_captured, vllm.ENVIRONMENT),
}
