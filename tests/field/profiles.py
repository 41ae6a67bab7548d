"""`sktune profile` on the profiles of others, and each figure that it states computed again from the file.

    python -m tests.field.profiles OWNER/NAME@COMMIT=FOLDER ... [--pair FILE FILE] [--table FILE]

The command runs as a user runs it; what it states is computed with json and pandas alone, on integers of nanoseconds.
A figure that differs is wrong unless the command says which kernels or steps it is not sure of; a refusal is one line
with another exit code than 0. Of files with the same content the first is read. The profiles stay where they are.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

COMMAND = (sys.executable, "-P", "-m", "sktune.cli", "profile")
FIGURES = ("step_ms", "compute_ms", "communication_ms", "gap_ms")
# Task types of CANN's documents that name a core; what has none is a kernel.
CORES = {
    "", "N/A", "AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV", "AI_CPU", "AIV_SQE", "FFTS_PLUS", "DSA_SQE", "HCCL",
    "COMMUNICATION",
}  # fmt: skip
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
HOST = ("cpu_op", "user_annotation", "python_function", "trace", "overhead", "operator")
IN_FOLDERS = ("kernel_details", "op_summary", "trace_view", ".trace.json", "trace", "msprof")
HEAD = """`python -m tests.field.profiles`, {day}: `sktune profile` on every profile that was found in public repositories, and
its figures computed again with json and pandas (no code of sktune). *equal*: to a microsecond's thousandth. *said*: the
figure rests on steps or kernels of which the command says that it is not sure. *not checked*: of a CPU trace only counts
and times of its operators are bounded, as which of them stand in for kernels is sktune's own rule. Files are named by
their folder; of those with the same content the first is listed."""


@dataclass(frozen=True)
class Said:
    """What the command answered: its event if it did, else its refusal."""

    event: Mapping[str, Any]
    headline: str
    refusal: str

    @property
    def warnings(self) -> str:
        """All of them, in one line."""
        return " | ".join(self.event["warnings"])

    def says(self, pattern: str) -> bool:
        """Whether a warning matches."""
        return re.search(pattern, self.warnings) is not None


@dataclass
class Facts:
    """What a file holds.

    Attributes:
        kernels: columns device, step (NaN outside), start and end (ns), type, communicates.
        other: rows or events of the device that are none.
        marked: whether steps are marked.
        is_of_host: whether no device was recorded, so that operators stand in for kernels.
        unread: categories of events of a device that neither side knows.
    """

    kernels: pd.DataFrame
    other: int = 0
    marked: bool = False
    is_of_host: bool = False
    unread: list[str] = field(default_factory=list)


def ask(*files: Path) -> Said:
    """Run the command."""
    with tempfile.TemporaryDirectory() as runs:
        command = [*COMMAND, *map(str, files), "--json", "--runs", runs]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "400"})
    if done.returncode:
        return Said({}, "", done.stderr.strip() or "no word")
    headline = re.sub(r"\s+", " ", done.stderr)
    return Said(json.loads(done.stdout), headline, "")


def opened(path: Path) -> bytes:
    """Return the bytes, unpacked."""
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def nanoseconds(value: Any) -> float:
    """Return a time in microseconds as whole nanoseconds; NaN if it is none."""
    try:
        number = Decimal(str(value).strip()) * 1000
        return int(number) if number.is_finite() else np.nan  # type: ignore[return-value]
    except InvalidOperation:
        return np.nan


def table_of(rows: Sequence[tuple[Any, ...]]) -> pd.DataFrame:
    """Return kernels from device, step, start, duration, type and communicates; times stay exact."""
    columns = ["device", "step", "start", "duration", "type", "communicates"]
    table = pd.DataFrame(rows, columns=columns).astype({"communicates": bool})
    table["start"] = pd.array([int(start) for start in table["start"]], dtype="Int64")
    table["end"] = table["start"] + pd.array([int(each) for each in table["duration"]], dtype="Int64")
    return table


def of_csv(data: bytes) -> Facts:
    """Read a kernel_details.csv or an op_summary."""
    lines = pd.read_csv(io.BytesIO(data), dtype=str, keep_default_na=False, index_col=False)
    plain = {re.sub(r"\(.*\)|[ _]", "", name).lower().removeprefix("task"): name for name in reversed(lines.columns)}
    plain = {**plain, **{key.removeprefix("op"): name for key, name in plain.items() if key in ("opname", "optype")}}
    core = plain.get("acceleratorcore") or ("Task Type" if "Task Type" in lines else None)
    kind = "OP Type" if "OP Type" in lines else "Type"
    kernels, other = [], 0
    for row in lines.to_dict("records"):
        start, duration = nanoseconds(row[plain["starttime"]]), nanoseconds(row[plain["duration"]])
        where = row[core].strip() if core else ""
        if where not in CORES or not row[plain["name"]].strip() or np.isnan(start) or not duration >= 0:
            other += 1
            continue
        name, of_type = row[plain["name"]], row.get(kind, "").strip()
        step = pd.to_numeric(row.get(plain.get("stepid", ""), ""), errors="coerce")
        communicates = where in ("HCCL", "COMMUNICATION") or name.lower().startswith(("hcom_", "hccl"))
        device = row.get(plain.get("deviceid", ""), "0")
        kernels.append((device, step, start, duration, of_type, communicates))
    table = table_of(kernels)
    return Facts(table, other, marked=bool(table["step"].notna().any()))


def of_trace(data: bytes) -> Facts | None:
    """Read a chrome trace; None if it is none."""
    content = json.loads(data, parse_float=str, strict=False)
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        return None
    timed = [each for each in events if isinstance(each, dict) and each.get("ph") == "X"]
    arguments = [each["args"] if isinstance(each.get("args"), dict) else {} for each in timed]
    steps: dict[str, list[tuple[float, float, int]]] = {}
    launches = {}
    for event, args in zip(timed, arguments, strict=True):
        kind, start = str(event.get("cat")), nanoseconds(event.get("ts"))
        if match := re.match(r"ProfilerStep\s*#\s*(\d+)", str(event.get("name"))):
            marks = steps.setdefault("device" if kind == "gpu_user_annotation" else "host", [])
            marks.append((start, start + nanoseconds(event.get("dur", 0)), int(match[1])))
        elif kind in ("cuda_runtime", "cuda_driver", "hip_runtime") and "correlation" in args:
            launches[args["correlation"]] = start
    rows: list[tuple[Any, ...]] = []
    other = 0
    for event, args in zip(timed, arguments, strict=True):
        is_gpu, is_npu = event.get("cat") in GPU, event.get("cat") not in GPU and "Task Type" in args
        if not is_gpu and not is_npu:
            continue
        start, duration = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
        if np.isnan(start) or not duration >= 0 or (is_npu and args["Task Type"] not in CORES):
            other += 1
            continue
        launched = launches.get(args.get("correlation"))
        step = at(start, steps.get("device") or steps.get("host", []))
        if launched is not None and steps.get("host"):
            step = at(launched, steps["host"])
        device = args.get("device", event.get("pid")) if is_gpu else event.get("pid")
        name = str(event.get("name"))
        communicates = bool(re.search(r"nccl|rccl|^hcom_|^hccl", name, re.IGNORECASE))
        rows.append((str(device), step, start, duration, function(name) if is_gpu else "", communicates))
    calls = [each for each in timed if str(each.get("cat")).endswith(("runtime", "driver"))]
    launching = {str(each["cat"]) for each in calls if re.search("launch|async", str(each["name"]), re.IGNORECASE)}
    strange = {str(each["cat"]) for each in timed if each.get("cat")} - {str(each["cat"]) for each in calls}
    unread = sorted(launching) + sorted(kind for kind in strange if not kind.lower().startswith(HOST))
    if rows:
        return Facts(table_of(rows), other, bool(steps))
    operators = [each for each in timed if each.get("cat") == "cpu_op"]
    found = [("cpu", np.nan, nanoseconds(e["ts"]), nanoseconds(e["dur"]), str(e["name"]), False) for e in operators]
    return Facts(table_of(found), other, bool(steps), True, unread)


def at(moment: float, marks: Sequence[tuple[float, float, int]]) -> float:
    """Return the number of the step at a moment; NaN outside."""
    inside = [(start, number) for start, end, number in marks if start <= moment < end]
    return max(inside)[1] if inside else np.nan


def function(name: str) -> str:
    """Return the function's name of a GPU kernel, read character by character."""
    if name.startswith(("Memcpy", "Memset")):
        return name.partition(" (")[0]
    depth, plain = 0, ""
    for char in name.replace("(anonymous namespace)::", ""):
        depth += (char == "<") - (char == ">")
        plain += char if not depth and char != ">" else ""
    parts = (plain.partition("(")[0].split() or [name])[-1].split("::")
    return "::".join(parts[-2:]) if parts[-1].lower() == "kernel" else parts[-1]


def covered(rows: pd.DataFrame) -> int:
    """Return the nanoseconds that at least one of the rows covers."""
    ends = [(int(start), 1) for start in rows["start"]] + [(int(end), -1) for end in rows["end"]]
    busy = running = 0
    before = 0
    for moment, change in sorted(ends, key=lambda each: (each[0], -each[1])):
        busy += (moment - before) if running else 0
        running, before = running + change, moment
    return busy


def figures(kernels: pd.DataFrame) -> dict[str, float]:
    """Return medians over the steps of one device, in milliseconds, and the counts."""
    each = []
    for _, rows in kernels.groupby("step"):
        span = int(rows["end"].max()) - int(rows["start"].min())
        computes = covered(rows[~rows["communicates"]])
        each.append((span, computes, covered(rows[rows["communicates"]]), span - covered(rows), len(rows) * 10**6))
    medians = np.median(np.array(each, dtype=float), axis=0) / 1e6
    return {**dict(zip((*FIGURES, "kernels"), medians, strict=True)), "steps": len(each)}


Row = tuple[str, str, str, str]


def checked(facts: Facts, said: Said) -> Iterator[Row]:
    """Yield figure, sktune's value, the independent one, and the verdict."""
    stated = sum(int(count.replace(",", "")) for count in re.findall(r"(?:^|\| )(\d+)[^|]*? left out", said.warnings))
    unsure = said.says(r"found by repetition|taken as such|cannot be told apart|as one step") or not facts.marked
    if facts.is_of_host:
        if facts.unread:
            is_said = said.says("work to a device") and not said.event["bottleneck"]
            yield "of a device", "a CPU trace", ", ".join(facts.unread), "said" if is_said else "WRONG"
        limits = facts.kernels.groupby("type")["duration"].agg(["size", "sum"])
        for row in said.event["top"]:
            size, time = limits.loc[row["type"]]
            fits = row["count"] <= size and row["total_ms"] <= time / 1e6 + 1e-6
            yield f"{row['type']}, at most", f"{row['count']}", f"{size}", "not checked" if fits else "WRONG"
        return
    outside = re.search(r"(\d+) of (\d+) kernels are outside of steps", said.warnings)
    is_part = facts.other and not outside
    yield "left out", str(stated - (int(outside[1]) if outside else 0)), str(facts.other), _same(
        stated - (int(outside[1]) if outside else 0), facts.other, False
    )
    found = facts.kernels if facts.marked else facts.kernels.assign(step=0)
    by_device = {str(device): rows for device, rows in found.groupby("device") if rows["step"].notna().any()}
    results = {device: figures(rows) for device, rows in by_device.items()}
    device = max(results, key=lambda name: results[name]["step_ms"])
    rows, expected = by_device[device], results[device]
    count = re.search(r"(\d+) steps? of ([\d,]+) kernels", said.headline)
    own = {**said.event, "kernels": int(count[2].replace(",", "")) if count else -1}
    doubt = unsure and said.event["steps"] != expected["steps"]
    for name in ("steps", "kernels", *FIGURES):
        slack = 1 if name == "kernels" else 2e-6 + 1e-9 * expected[name]
        yield name, f"{own[name]:.6g}", f"{expected[name]:.6g}", _same(own[name], expected[name], doubt, slack)
    inside = rows[rows["step"].notna()]
    missing = int(rows["step"].isna().sum())
    if facts.marked or outside:
        state = (int(outside[1]), int(outside[2])) if outside else (0, len(rows))
        yield "outside of steps", f"{state[0]} of {state[1]}", f"{missing} of {len(rows)}", _same(
            hash(state), hash((missing, len(rows))), doubt
        )
    total = float(inside["duration"].sum()) / 1e6
    share = sum(row["total_ms"] for row in said.event["top"]) / max(sum(row["share"] for row in said.event["top"]), 1e-9)
    yield "time of all kernels", f"{share:.6g}", f"{total:.6g}", _same(share, total, doubt or is_part, 1e-5 * total)
    types = inside.groupby("type")["duration"].agg(["size", "sum"])
    by_name = said.says("taken from their names") or (types.index == "").any()
    wrong = [
        row["type"]
        for row in said.event["top"]
        if row["type"] not in types.index
        or row["count"] != types.loc[row["type"], "size"]
        or abs(row["total_ms"] - types.loc[row["type"], "sum"] / 1e6) > 2e-6
    ]
    if not (types.index == "").all():
        shown = f"{len(said.event['top']) - len(wrong)} of {len(said.event['top'])} equal"
        yield "operator types", shown, ", ".join(wrong)[:60] or "all", _same(len(wrong), 0, doubt or by_name)


def _same(own: float, expected: float, doubt: Any, slack: float = 0) -> str:
    return "equal" if abs(own - expected) <= slack else "said" if doubt else "WRONG"


def refused(said: Said) -> Row:
    """Return the row of a refusal."""
    lines = said.refusal.splitlines()
    is_one = len(lines) == 1 and "Traceback" not in said.refusal and re.search(r"[;?:]", said.refusal)
    return "-", "refused", re.sub(r"\S*/", "", said.refusal)[:110].replace("|", "/"), "refused" if is_one else "WRONG"


def profiles(root: Path) -> Iterator[Path]:
    """Yield the profiles in a folder, or the file itself."""
    for path in [root] if root.is_file() else sorted(root.rglob("*")):
        if not path.is_file() or not re.search(r"\.(csv|json)(\.gz)?$", path.name):
            continue
        is_table = re.search(r"kernel_details|op_summary", path.name)
        if is_table or (".json" in path.name and b'"ph"' in opened(path)):
            yield path


def examined(path: Path) -> tuple[Facts | None, list[Row]]:
    """Ask the command of one file, and compute again."""
    data, said = opened(path), ask(path)
    facts = of_csv(data) if ".csv" in path.name else of_trace(data)
    if said.refusal:
        return None, [refused(said)]
    return facts, list(checked(facts, said)) if facts else [("-", "a profile", "none", "WRONG")]


def of_folder(folder: Path, facts: Sequence[Facts]) -> list[Row]:
    """Return the rows of a folder whose files are known: its slowest device is that of one of them."""
    said = ask(folder)
    if said.refusal:
        return [refused(said)]
    return min(
        (list(checked(each, said)) for each in facts), key=lambda rows: sum(verdict == "WRONG" for *_, verdict in rows)
    )


def main() -> int:
    """Print and write the table; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("repositories", nargs="+", metavar="OWNER/NAME@COMMIT=FOLDER")
    parser.add_argument("--pair", nargs=2, action="append", type=Path, default=[], metavar="FILE")
    parser.add_argument("--table", type=Path, help="Write the table to this file.")
    options = parser.parse_args()
    lines: list[str] = []
    verdicts: list[str] = []

    def note(name: str, rows: Sequence[Row]) -> None:
        verdicts.extend(verdict for *_, verdict in rows)
        for row in rows:
            print(name, *row, sep=" | ", flush=True)
        unequal = [row for row in rows if row[-1] != "equal"]
        equal = ", ".join(row[0] for row in rows if row[-1] == "equal")
        lines.extend(f"| {name} | {' | '.join(row)} |" for row in unequal)
        if equal:
            lines.append(f"| {name} | {equal} | | | equal |")

    known: set[str] = set()
    read: dict[Path, Facts] = {}
    sources = []
    for repository in options.repositories:
        source, _, root = repository.partition("=")
        sources.append(source)
        folders: dict[Path, list[Facts]] = {}
        for path in profiles(Path(root)):
            if (content := hashlib.sha256(opened(path)).hexdigest()) in known:
                continue
            known.add(content)
            facts, rows = examined(path)
            note(f"{path.parent.name}/{path.name}"[-70:], rows)
            if facts:
                read[path.resolve()] = facts
                if any(name in path.name for name in IN_FOLDERS):
                    folders.setdefault(path.parent, []).append(facts)
        for folder, each in folders.items():
            note(f"{folder.parent.name}/{folder.name}/"[-70:], of_folder(folder, each))
    for baseline, candidate in options.pair:
        said = ask(baseline, candidate)
        if said.refusal:
            note(f"{baseline.parent.name} against {candidate.parent.name}", [refused(said)])
            continue
        own = [ask(each).event["step_ms"] for each in (baseline, candidate)]
        compared = said.event["comparison"]
        rows = [
            ("step_ms", f"{compared['step_ms']:.6g}", f"{own[1]:.6g}", _same(compared["step_ms"], own[1], False)),
            ("speedup", f"{compared['speedup']:.6g}", f"{own[0] / own[1]:.6g}",
             _same(compared["speedup"], own[0] / own[1], False, 2e-6 * compared["speedup"])),
        ]  # fmt: skip
        note(f"{baseline.parent.name} against {candidate.parent.name}", rows)
    counts = pd.Series(verdicts).value_counts()
    summary = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{len(known)} profiles of {len(sources)} repositories: {summary}")
    if options.table:
        head = HEAD.format(day=date.today().strftime("%-d %B %Y"))
        text = ["# Profiles of others", "", head, "", f"{len(known)} different files: {summary}.", "", "Looked at:", ""]
        text += [f"* {source}" for source in sources]
        text += ["", "| profile | figure | sktune | pandas | verdict |", "| --- | --- | --- | --- | --- |", *lines]
        options.table.write_text("\n".join(text) + "\n", encoding="utf-8")
    return int("WRONG" in verdicts)


if __name__ == "__main__":
    sys.exit(main())
