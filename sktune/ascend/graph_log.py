"""How the scopes of a captured graph were fused, from the log of graph-autofusion.

With ``ASCEND_OP_COMPILE_SAVE_KERNEL_META=1`` it writes a folder ``sk_meta/<process>/model_<graph>``: the SuperKernels
with their kernels (``sk_fused_nodes.log``), and what is left, with reasons and the tasks of each scope
(``sk_fusion_fail_reasons.log``). Formats: sk_optimizer.cpp, sk_graph.cpp and sk_dump_json.cpp at 8d0b4fbc.
"""

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sktune.ascend.captured_graph import UnfusedReason
from sktune.ascend.fusion import RealisedFusion
from sktune.ascend.kernel_name import parse_superkernel_name
from sktune.core.errors import BadInputError
from sktune.core.events.scopes import FormedSuperKernel, NamedOperator, ScopeFusion
from sktune.core.files import open_regular

FUSED, LEFT = "sk_fused_nodes.log", "sk_fusion_fail_reasons.log"
MAX_LINE_BYTES = 1 << 13
"""Longer lines than graph-autofusion writes are read in pieces."""
_SUPERKERNEL = re.compile(r"SK Function: (.{1,1024}), scope id: \d+, Node Count: \d+")
_KERNEL = re.compile(r"\[nodeId:(\d+), streamId:(\d+),.*KernelInfos\{funcName:([^,}]+)")
_REASON = re.compile(r"\}: reason: ([A-Z_]+)( \[\w+\])?")
_SCOPE = re.compile(r"scopeId=\d+, scopeFlags=\S*, scopeNames=\[(.*)\], totalNodes=\d+")
_TASKS = re.compile(r"(?:nodeIds: \[|continued: )([\d, ]+)\]")
_BREAK = re.compile(r"breakReason=\[breakReason=\w+, triggerNode=(\d+).*\], breakReasonDetail=(.*), scopeName=\[(.*)\]")


@dataclass(slots=True)
class _Formed:
    name: str
    kernels: list[NamedOperator] = field(default_factory=list)
    streams: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Log:
    """What the two files say; each task is known by its number."""

    formed: list[_Formed] = field(default_factory=list)
    left: dict[str, tuple[NamedOperator, str]] = field(default_factory=dict)
    scopes: dict[str, set[str]] = field(default_factory=dict)
    breaks: list[tuple[str, str, str]] = field(default_factory=list)
    """The task, what is said about it, and the scope."""
    has_formed: bool = False


def fusion_of_log(folder: Path) -> RealisedFusion:
    """Return how the scopes of the graph were fused whose log is in ``folder``, at any depth.

    Raises:
        BadInputError: it has no such log, or those of several graphs.
    """
    found = sorted({path.parent for name in (FUSED, LEFT) for path in folder.rglob(name)})
    if len(found) != 1:
        names = ", ".join(path.relative_to(folder).as_posix() for path in found[:4])
        problem = f"has the logs of {len(found)} graphs; give one of {names}" if found else f"has no {FUSED} or {LEFT}"
        raise BadInputError(f"{folder} {problem}")
    log = _Log()
    for line in _lines(found[0] / FUSED):
        if header := _SUPERKERNEL.search(line):
            log.formed.append(_Formed(header[1]))
        elif (kernel := _KERNEL.search(line)) and log.formed:
            log.formed[-1].kernels.append(_operator(kernel[3]))
            log.formed[-1].streams.add(kernel[2])
    _read_left(_lines(found[0] / LEFT), log)
    if log.has_formed and not log.formed:
        raise BadInputError(f"{found[0]} has no {FUSED}, though SuperKernels were formed; give the whole folder")
    parsed = [(each, parse_superkernel_name(each.name, log.scopes)) for each in log.formed]
    labels = dict.fromkeys((*log.scopes, *(name.scope for _, name in parsed if name)))
    scopes = tuple(
        _scope(label, [each for each, name in parsed if name and name.scope == label], log) for label in labels
    )
    alone = "\n".join(sorted(each.name for each, _ in log.left.values()))
    return RealisedFusion(scopes, ("graph",), hashlib.sha256(alone.encode()).hexdigest())


def _scope(label: str, formed: Sequence[_Formed], log: _Log) -> ScopeFusion:
    kernels = []
    for each in formed:
        name = parse_superkernel_name(each.name, (label,))
        assert name is not None
        operators, is_split = tuple(each.kernels), len(formed) > 1
        kernels.append(FormedSuperKernel(each.name, name.first, name.last, operators, is_split, len(each.streams) == 1))
    left = [log.left[task] for task in sorted(log.scopes.get(label, ()), key=int) if task in log.left]
    reasons = dict.fromkeys(reason for _, reason in left)
    texts = [f"not fused, {reason}: {_names([each for each, why in left if why == reason])}" for reason in reasons]
    ends = [
        f"a SuperKernel ends before {log.left[task][0].name if task in log.left else f'task {task}'}: {text}"
        for task, text, scope in log.breaks
        if scope == label
    ]
    return ScopeFusion(label, (), "", tuple(kernels), (), tuple(each for each, _ in left), (*texts, *ends))


def _names(operators: Collection[NamedOperator]) -> str:
    names = list(dict.fromkeys(operator.name for operator in operators))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _read_left(lines: Iterator[str], log: _Log) -> None:
    tasks: set[str] | None = None
    for line in lines:
        kernel, reason = _KERNEL.search(line), _REASON.search(line)
        if kernel and reason:
            meaning = (
                UnfusedReason[reason[1]]
                if reason[1] in UnfusedReason.__members__
                else reason[1].lower().replace("_", " ")
            )
            log.left[kernel[1]] = _operator(kernel[3]), str(meaning)
        elif scope := _SCOPE.search(line):
            tasks = log.scopes.setdefault(scope[1], set())
        elif cut := _BREAK.search(line):
            log.breaks.append((cut[1], cut[2], cut[3]))
        elif "scopeStatus=SUCCESS" in line:
            log.has_formed = True
        elif "scopes after fusion" in line:
            tasks = None
        elif (listed := _TASKS.search(line)) and tasks is not None:
            tasks.update(listed[1].split(", "))


def _operator(function: str) -> NamedOperator:
    """Return a kernel; its type is what comes before the digest in the name of its function."""
    return NamedOperator(function, function.partition("_")[0])


def _lines(path: Path) -> Iterator[str]:
    if not path.is_file():
        return
    try:
        with open_regular(path) as file:
            while line := file.readline(MAX_LINE_BYTES):
                yield line.decode("utf-8", "replace")
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror}; give the folder that has it") from error
