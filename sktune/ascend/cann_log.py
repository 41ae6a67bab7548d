"""Why a plan failed, and why a scope was split, read from plog and compile logs.

The strings come from ``super_kernel_pass.cc`` and the FE and HCCL engines in hicann/ge, from graph-autofusion, and
from torchair's ``superkernel_cases.md``; the meaning of codes from ``cann_codes.yaml``. Logs grow to gigabytes and
repeat a message for each operator, rank and retry: lines are read one at a time, and equal messages become one
explanation.
"""

import bz2
import codecs
import gzip
import io
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from sktune.ascend.kernel_name import parse_superkernel_name
from sktune.core.errors import BadInputError, nearest
from sktune.core.files import open_regular
from sktune.core.scope_options import SUPERKERNEL_OPTIONS

TABLE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("cann_codes.yaml").read_text(encoding="utf-8"))
CORE_CODES: dict[str, str] = {
    name: str(code) for number, (code, words) in TABLE["scheduler"].items() for name in (f"{number:#x}", words)
}
"""The return code that follows a kernel's failure on a core, by the scheduler's ``retCode`` and by its words."""


@dataclass(frozen=True, slots=True)
class Code:
    """What is known of an error code.

    Attributes:
        name: as in logs: ``E40021``, or a return code of six digits.
        family: the part of CANN that it comes from; empty if that is not documented.
        kind: a ``sktune.ascend.cann_log.Kind``.
        means, action: empty if CANN's documents do not have the code.
        is_internal: whether it stands for an internal error, which is often the consequence of another.
    """

    name: str
    family: str
    kind: str
    means: str = ""
    action: str = ""
    is_internal: bool = False


@cache
def code(name: str) -> Code:
    """Return what is known of a code; CANN documents its families, and that 9000 to 9999 are internal errors."""
    key: str | int = int(name) if name.isdecimal() else name
    families, unknown = TABLE["families"], {"name": "", "kind": "runtime"}
    family = TABLE["return_codes"] if name.isdecimal() else families.get(name[1], unknown)
    is_internal = not name.isdecimal() and (name[2] == "9" or name.endswith("8888"))
    unlisted = ("an internal error", "the lines before it say where it began") if is_internal and family["name"] else ()
    means, action, *kind = family.get("codes", {}).get(key, unlisted) or ("", "")
    return Code(name, family["name"], kind[0] if kind else family["kind"], means, action, is_internal)


Kind = Literal[
    "option", "aborted", "streams", "tiling", "product", "timeout", "fault", "communication", "compile", "runtime",
    "bypassed", "unfusable", "foreign", "collective", "deadlock", "sync_all", "dynamic", "unmarked",
]  # fmt: skip

MAX_LINE_LENGTH = 4096
"""Longer lines are read in pieces: the patterns take time that grows with the square of a line's length."""

FAILURES: tuple[Kind, ...] = (
    "option", "aborted", "streams", "tiling", "product", "timeout", "fault", "communication", "compile", "runtime",
)  # fmt: skip
"""Kinds that end a trial, the most specific first: a failed compile is also reported by all its callers."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One finding in the logs.

    Attributes:
        message: one readable line: what happened, and what to do.
        operator: the first operator concerned.
        operator_type: its type; for a ``sub_kernel`` in lower case, as in its symbol.
        sub_kernel: symbol of the code inside a SuperKernel that was running when it failed.
        count: distinct operators concerned; for a sub-kernel, the cores on which it failed.
    """

    kind: Kind
    message: str
    scope: str = ""
    operator: str = ""
    operator_type: str = ""
    sub_kernel: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class _Rule:
    """How to explain one kind of line. The groups of ``pattern`` are fields of an explanation, and ``text``."""

    kind: Kind
    pattern: re.Pattern[str]
    message: str
    is_internal: bool = False


def _rule(kind: Kind, pattern: str, message: str) -> _Rule:
    return _Rule(kind, re.compile(pattern), message)


_UNFUSABLE = (
    "scope {scope} holds {count} x {operator_type} that cannot be fused and split it, first {operator}; "
    "end the scope before it, and start another after it"
)

# The first rule that matches explains a line.
_RULES = (
    _rule(
        "unfusable",
        r"find super kernel sub op (?P<operator>.+?)\((?P<operator_type>\w+)\) can ?not fusion"
        r".*super_scope_name (?P<scope>.*?), stream_id",
        _UNFUSABLE,
    ),
    _rule(
        "aborted",
        r"In abort check scene, node (?P<operator>\S+) .*target scope (?P<scope>.*?)(?:\[FUNC:|$)",
        "scope {scope} cannot be one SuperKernel: {operator} is in the way, and strict-scope-check=abort ended the "
        "compilation; end the scope before it",
    ),
    _rule(
        "bypassed",
        r"current node (?P<operator>\S+) can ?not fusion.*target scope (?P<scope>.*?)(?:\[FUNC:|$)",
        "scope {scope} was dropped entirely at {operator} by strict-scope-check=bypass; leave the option out",
    ),
    _rule(
        "unfusable",
        r"node (?P<operator>\S+) can ?not fusion, maybe it is tbe.*target scope (?P<scope>.*?), topo id",
        _UNFUSABLE,
    ),
    _rule(
        "foreign",
        r"node (?P<operator>\S+) can ?not fusion.*target scope (?P<scope>.*?), topo id",
        "{count} x {operator_type} run between the operators of scope {scope} without belonging to it and split it, "
        "first {operator}; include them in the scope, or end it before them",
    ),
    _rule(
        "sync_all",
        r"scope (?P<scope>\S+) split before node (?P<operator>[^\s,;]+) \(topo_id \d+\), reason 1\b",
        "scope {scope} was split before {operator}, because a SyncAll needs other cores than the SuperKernel's; "
        "end the scope there",
    ),
    _rule(
        "deadlock",
        r"scope (?P<scope>\S+) split before node (?P<operator>[^\s,;]+)",
        "scope {scope} was split before {operator}, because streams would deadlock; end the scope there",
    ),
    _rule(
        "deadlock",
        r"exclude node (?P<operator>[^\s,;]+).*due to deadlock",
        "{operator} was left out of its scope, because streams would deadlock; end the scope before it",
    ),
    _rule(
        "deadlock",
        r"deadlock check did not converge",
        "GE found no split of the scopes that avoids a deadlock between streams; make the scopes smaller",
    ),
    _rule(
        "option",
        r"\[Super Kernel\] Invalid compile option: (?P<text>.*?)(?:\[FUNC:|$)",
        "the compiler rejects the options (EB0500): {text}{hint}",
    ),
    _rule(
        "option",
        r"EB0500[^\w\[]*(?P<text>.*?)(?:\[FUNC:|$)",
        "the compiler rejects the options (EB0500): {text}{hint}",
    ),
    _rule(
        "streams",
        r"(?P<text>do not support more than 2 real stream|do not support self send/receive pair within 1 real stream"
        r"|exists send-recv event pair within 1 op)(?:.*?oplist: (?P<operator>\S+))?",
        "a scope spans streams that one SuperKernel does not support ({text}); end it where the stream changes",
    ),
    _rule(
        "tiling",
        r"SuperKernel node\[(?P<operator>.+?), (?P<operator_type>\w+)\] that has reused binary is not going into",
        "{operator} ({operator_type}) needs tiling on the device; compile with tiling_schedule_optimize=True, "
        "or end the scope before it",
    ),
    _rule(
        "product",
        r"[Ss]uper ?[Kk]ernel.*current soc (?P<text>.*?do not support)",
        "this product does not support SuperKernel ({text}); use Atlas A3",
    ),
    _rule(
        "compile",
        r"(?:Op\[(?P<operator>[^\]]+)\].*)?compile (?P<text>subkernel|superkernel) failed",
        "compiling a {text} of {operator} failed; the line before it in the log says why",
    ),
    _rule(
        "compile",
        r"(?i:compile op) ?\[?(?P<operator>[^\]\s,]+?)[\].,](?=\W| failed|$)",
        "compiling {operator} failed (E40021); the Python stack after it in the log says why",
    ),
    _rule(
        "compile",
        r"Operator \[?(?P<operator>[^\]\s]+)\]? compilation failed",
        "compiling {operator} failed (E20001); the lines before it in the log say why",
    ),
    _rule(
        "dynamic",
        r"SuperKernelPass only support static graph\[?(?P<text>[^\]]*)",
        "graph {text} has dynamic shapes, so no scope in it was fused; compile with dynamic=False",
    ),
    _rule(
        "unmarked",
        r"graph \[(?P<text>[^\]]*)\] has no super kernel scope",
        "graph {text} has no scope that can be fused; normal for a baseline, but a plan's units must be in this graph",
    ),
    _rule(
        "collective",
        r"no support (?:aiv|alg), del superKernelScope attr",
        "a collective has no AIV algorithm and left its scope; set HCCL_OP_EXPANSION_MODE=AIV",
    ),
    _rule(
        "communication",
        r"\bEI000[26]\b|(?:hccl|HCCL|Hccl).*\btime[sd]? ?out\b",
        "a rank timed out waiting for another (HCCL timeout); check the other ranks' logs first, and give all the same "
        "plan",
    ),
)  # fmt: skip

_CORE = re.compile(
    r"retCode\W{1,3}(?P<number>0x[0-9a-f]+)\b"
    rf"|\b(?P<words>{'|'.join(name for name in CORE_CODES if name[0] != '0')})\b",
    re.IGNORECASE,
)
_FAULT_KERNEL = re.compile(r"fault kernel_name=(?P<kernel>[^\s,]+)")
_ORIGIN = re.compile(r"origin_op_name \[(?P<name>[^\]]+)\]")
_SYMBOL = re.compile(r"(?:(?P<core>coreId=\d+, coreType=\d+).*?)?symbol name=(?P<symbol>[^\s,]+)")
_PROCESS = re.compile(r"\] ?\w+\((\d+),|\[PID: ?(\d+)\]")
_SUB_KERNEL = re.compile(r"(?:te_)?(?P<type>\w+?)_[0-9a-f]{32,64}(?:_|$)")

# A code stands apart from letters and names. What is not documented is taken for a code only before its message, in
# brackets, or behind a word that is said of codes alone.
_CODE = re.compile(
    r"(?<![\w.=/+#-])(?P<name>ERR\d{5}|E[0-9A-Z]\d{4})(?!\w)"
    r"(?P<certain>(?=\W?\s*(?:[:\[]|[^\x00-\x7f]|\s\s))|(?<=\[\w{6})(?=\])|(?<=ERR\d{5}))?(?P<rest>.*)"
    r"|(?i:code)\W{1,4}(?:is )?(?P<named>E[0-9A-Z]\d{4})\b",
    re.ASCII,
)
_RETURN_CODE = re.compile(
    r"(?i:(?P<certain>err(?:or)?[ _-]?(?:code|no)|(?<![a-z])ret(?:urn)?[ _-]?(?:code)?|result|status)"
    r"|code|error|err|ret|value|failed with|[报出]错|错误|返回)"
    r"\W{0,4}(?:is\W{1,3})?(?P<name>[1-5]\d{5}|0x[0-9a-fA-F]{5})\b",
    re.ASCII,
)
_COMPRESSED: dict[bytes, Callable[[Any], Any]] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
_ARCHIVES = (b"PK\x03\x04", b"7z\xbc\xaf", b"Rar!", b"\x28\xb5\x2f\xfd")
_NOT_TEXT = re.compile(r"\x00|\x1b\[[0-9;]*[A-Za-z]")
_BEFORE_TEXT = re.compile(r"^[^\w\[(]*(?:\[PID: ?\d+\]\s*)?(?:[\d-]{10}-[\d:.]+\s*)?(?:\w*\(E\w{5}\))?[:\s]*")
_LOG_PREFIX = re.compile(r"^\W*\[(?:ERROR|WARNING|INFO|EVENT|DEBUG|TRACE)\].*?(?:\]\s*(?:\d+|\[tid:\d+\]) ?)")
MAX_TEXT = 300
"""Characters of a line that an explanation repeats."""

# Most lines are irrelevant; this decides it in one pass over the line.
_OF_INTEREST = re.compile(
    r"can ?not fusion|[Ss]uper ?[Kk]ernel|deadlock|(?<![A-Za-z])E(?:RR|[0-9A-Z])\d{4}|real stream|send-recv event"
    r"|(?i:compile (?:sub|op)|time[sd]? ?out|exception|overflow|(?:code|err(?:or)?|no|result|status|ret|value|with)\W)"
    r"|错|返回|fault kernel_name"
    r"|origin_op_name|symbol name|split before|super kernel scope|abort check"
)


@dataclass(slots=True)
class _Seen:
    """Lines with the same message: the first of them, and the operators that they name."""

    rule: _Rule
    groups: dict[str, str]
    operators: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Fault:
    """What one process reported about a kernel that failed."""

    code: str = ""  # a return code; that of a timeout if there are several
    kernels: set[str] = field(default_factory=set)
    origin: str = ""
    symbols: set[tuple[str, str]] = field(default_factory=set)  # what ran, and on which core

    @property
    def timed_out(self) -> bool:
        return bool(self.code) and code(self.code).kind == "timeout"


class _Log:
    """Collects the findings of the lines added to it."""

    def __init__(self, labels: Collection[str], types: Mapping[str, str]) -> None:
        self._labels = labels
        self._types = types
        self._seen: dict[tuple[str, ...], _Seen] = {}
        self._faults: dict[str, _Fault] = {}
        self._explained: set[tuple[str, str]] = set()
        self._headed: _Seen | None = None  # a code whose message is the next line

    def add(self, line: str) -> None:
        headed, self._headed = self._headed, None
        if headed and line.startswith((" ", "\t")):
            headed.groups["text"] = _shortened(line)
        if not _OF_INTEREST.search(line) or self._add_fault(line):
            return
        for rule in _RULES:
            if match := rule.pattern.search(line):
                self._count(rule, {name: value.strip(" .") for name, value in match.groupdict("").items()})
                return
        self._add_code(line)

    def _count(self, rule: _Rule, groups: dict[str, str]) -> None:
        operator, scope = groups.get("operator", ""), groups.get("scope", "")
        if rule.kind in ("unfusable", "foreign"):
            # GE names an operator that it removes from its scope a second time, as the place of the cut.
            if (scope, operator) in self._explained:
                return
            self._explained.add((scope, operator))
        groups["operator_type"] = groups.get("operator_type") or self._types.get(operator, "")
        key: tuple[str, ...] = (rule.kind, scope, groups["operator_type"], groups.get("text", ""))
        if rule.kind == "compile":
            key += (operator,)
        self._seen.setdefault(key, _Seen(rule, groups)).operators.add(operator)

    def _add_code(self, line: str) -> None:
        """Explain a line by the code in it: the first line of each that is known, and all lines of others."""
        known, text = None, ""
        if match := _CODE.search(line):
            known = code(match["name"] or match["named"])
            text = _shortened(_BEFORE_TEXT.sub("", match["rest"]) if match["name"] else line)
            if not (known.means or match["named"] or match["certain"] is not None):
                known = None
        if (known is None or known.is_internal) and (number := _RETURN_CODE.search(line)):
            by_number = code(str(int(number["name"], 0)))
            # Of numbers that are not documented, 5xxxxx are CANN's failures; others may be anything.
            if by_number.means or (number["certain"] and by_number.name[0] == "5"):
                known, text = by_number, _shortened(line)
        if known is None:
            return
        is_header = text.lower().startswith("inner error")
        origin = f" ({known.family})" if known.family else ""
        means = f"{known.means}{{lines}}; {known.action}" if known.means else "not in sktune's table of codes{lines}"
        rule = _Rule(cast("Kind", known.kind), _CODE, f"{known.name}{origin}: {means}", known.is_internal)
        seen = self._seen.setdefault(
            ("code", known.name, "" if known.means else text),
            _Seen(rule, {"text": "" if is_header else text, "operator_type": ""}),
        )
        if is_header and not seen.groups["text"]:
            self._headed = seen
        elif not seen.groups["text"]:
            seen.groups["text"] = text

    def _add_fault(self, line: str) -> bool:
        """Return whether a line reports how a kernel failed, and keep what it says."""
        core = _CORE.search(line)
        number = _RETURN_CODE.search(line)
        failed = CORE_CODES.get((core["number"] or core["words"]).lower(), "") if core else ""
        if not failed and number and (name := str(int(number["name"], 0))) in CORE_CODES.values():
            failed = name
        kernel, origin, symbol = _FAULT_KERNEL.search(line), _ORIGIN.search(line), _SYMBOL.search(line)
        if not (failed or kernel or origin or symbol):
            return False
        process = _PROCESS.search(line)
        fault = self._faults.setdefault((process[1] or process[2]) if process else "", _Fault())
        if failed and not fault.timed_out and (not fault.code or code(failed).kind == "timeout"):
            fault.code = failed
        if kernel:
            fault.kernels.add(kernel["kernel"])
        if origin:
            fault.origin = fault.origin or origin["name"]
        if symbol:
            fault.symbols.add((symbol["symbol"], symbol["core"] or ""))
        return True

    def explanations(self) -> Iterator[Explanation]:
        faults = [fault for fault in self._faults.values() if fault.code or fault.kernels]
        # A process that waits for the failed one, and the console output, report a fault without its kernel.
        reported = next((fault.code for fault in sorted(faults, key=lambda each: not each.timed_out) if fault.code), "")
        blamed = [
            fault if fault.timed_out else replace(fault, code=reported)
            for fault in faults
            if fault.kernels or fault.origin
        ]
        # The same fault on many ranks is one fault.
        yield from dict.fromkeys(each for fault in blamed or faults for each in self._explain_fault(fault))
        # What waits for a failure, and what only says that there is one, comes after its cause.
        for seen in sorted(self._seen.values(), key=lambda each: each.rule.is_internal):
            if seen.groups.get("text") or not (seen.rule.is_internal and (faults or len(self._seen) > 1)):
                yield self._explain(seen)

    def _explain(self, seen: _Seen) -> Explanation:
        groups, kind = seen.groups, seen.rule.kind
        operator, scope = groups.get("operator", ""), groups.get("scope", "")
        if not scope and (name := parse_superkernel_name(operator, self._labels)):
            scope = name.scope
        fields = {
            "scope": scope,
            "operator": operator or "an operator",
            "operator_type": groups["operator_type"] or "operators",
            "count": len(seen.operators),
            "text": groups.get("text", ""),
            "lines": f": {groups['text']}" if groups.get("text") else "",
            "hint": _hint(groups.get("text", "")) if kind == "option" else "",
        }
        message = seen.rule.message.format(**fields)
        return Explanation(kind, message, scope, operator, groups["operator_type"], count=len(seen.operators))

    def _explain_fault(self, fault: _Fault) -> Iterator[Explanation]:
        kind: Kind = "timeout" if fault.timed_out else "fault"
        what = ("timed out" if fault.timed_out else "failed") + (f" ({fault.code})" if fault.code else "")
        fix = (
            "try feed-sync-all=1, then leave its block out"
            if kind == "timeout"
            else "leave its block out of the scope, and run the baseline to check that it works without scopes"
        )
        name = parse_superkernel_name(fault.origin, self._labels)
        if name is None and not any(kernel.startswith("te_superkernel") for kernel in fault.kernels):
            kernel = min(fault.kernels, default="")
            which = f"{kernel} {what} and does not appear to be a SuperKernel" if kernel else f"a kernel {what}"
            yield Explanation(kind, f"{which}; check whether the baseline fails too")
            return
        place = f"scope {name.scope}" if name else "a SuperKernel"
        scope = name.scope if name else ""
        if not fault.symbols:
            yield Explanation(kind, f"{place} {what}; {fix}", scope, fault.origin)
        for symbol, cores in Counter(symbol for symbol, _ in sorted(fault.symbols)).most_common():
            match = _SUB_KERNEL.match(symbol)
            guilty = match["type"] if match else symbol
            message = f"{place} {what} in {guilty} on {cores} core{'s' * (cores > 1)}; {fix}"
            yield Explanation(kind, message, scope, fault.origin, guilty, symbol, cores)


def _shortened(line: str) -> str:
    """Return what a line says, without the program's own place and the line's beginning."""
    text = _LOG_PREFIX.sub("", line.partition("[FUNC:")[0]).strip(" \t.")
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


def _hint(text: str) -> str:
    """Return what to do about an option that the compiler rejected."""
    name = next((word for word in re.findall(r"[\w-]+", text) if "-" in word), text.partition(" ")[0])
    option = SUPERKERNEL_OPTIONS.get(name)
    if option is None:
        return nearest(name, SUPERKERNEL_OPTIONS) if "not supported" in text else ""
    if "not supported" in text:
        return f"; this version of CANN does not support {name}: leave it out"
    return f"; {name} is {option.values.description}"


def explain(
    lines: Iterable[str], labels: Collection[str] = (), types: Mapping[str, str] | None = None
) -> tuple[Explanation, ...]:
    """Return what ``lines`` of logs say about SuperKernel: failures first, a cause before its consequences.

    Args:
        lines: of any number of logs, one after another.
        labels: of the plan's scopes, to recognize them in names of SuperKernels.
        types: of operators by name, as in a graph dump, for lines that name an operator without its type.
    """
    log = _Log(labels, types or {})
    for line in lines:
        log.add(_NOT_TEXT.sub("", line).rstrip())
    rank = {kind: place for place, kind in enumerate(FAILURES)}
    return tuple(sorted(log.explanations(), key=lambda each: rank.get(each.kind, len(rank))))


def explain_files(
    paths: Iterable[Path], labels: Collection[str] = (), types: Mapping[str, str] | None = None
) -> tuple[Explanation, ...]:
    """Return what the logs at ``paths`` say, as ``explain`` does.

    Raises:
        BadInputError: a log cannot be read.
    """
    return explain(_lines(paths), labels, types)


def _lines(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        try:
            with open_regular(path) as file, _text(file) as lines:
                rest = ""
                while piece := rest + lines.readline(MAX_LINE_LENGTH - len(rest)):
                    # A long line is not cut inside a word, which may be a code.
                    cut = piece.rfind(" ") + 1 if len(piece) == MAX_LINE_LENGTH else 0
                    yield piece[: cut or None]
                    rest = piece[cut:] if cut else ""
        except (EOFError, zlib.error, lzma.LZMAError):
            continue  # what was compressed ends early, as after a crash: all before it was read
        except OSError as error:
            reason = error.strerror or str(error)
            raise BadInputError(f"{path} cannot be read: {reason}; give a plog or compile log") from error


def _text(file: io.BufferedReader) -> io.TextIOWrapper:
    """Return the text of a log, which may be compressed, in UTF-16 as Windows writes it, or in a Chinese encoding.

    Raises:
        OSError: it is an archive.
    """
    head = file.read1(4096)
    while reader := _COMPRESSED.get(head[:2]):
        file.seek(0)
        file = reader(file)
        head = file.read1(4096)
    if head.startswith(_ARCHIVES):
        raise OSError("it is an archive, unpack it first")
    file.seek(0)

    def blanks(encoding: str) -> int:
        text = head.decode(encoding, "replace")
        return text.count(" ") + text.count("\n")

    wide = max("utf-16-le", "utf-16-be", key=blanks)
    if 4 * blanks(wide) > head.count(b" ") + head.count(b"\n"):  # such bytes may also be halves of other characters
        return io.TextIOWrapper(file, wide, "replace")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return io.TextIOWrapper(file, "gb18030", "replace")
    return io.TextIOWrapper(file, "utf-8", "replace")


def cause(explanations: Iterable[Explanation]) -> Explanation | None:
    """Return what made a trial fail, or None if the logs show no failure."""
    return next((each for each in explanations if each.kind in FAILURES), None)
