"""`sktune profile` on the profiles of others, and each figure that it states computed again from the file.

    python -m benchmarks.field.profiles OWNER/NAME@COMMIT=FOLDER ... [--pair FILE FILE] [--table FILE]

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
from datetime import UTC, datetime
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
TICKS = 10**9
"""Ticks of a millisecond: whole picoseconds, so that nothing is rounded; they are Python's integers."""
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
HOST = ("cpu_op", "user_annotation", "python_function", "trace", "overhead", "operator")
IN_FOLDERS = ("kernel_details", "op_summary", "trace_view", ".trace.json", "trace", "msprof")
HEAD = """`python -m benchmarks.field.profiles`, {day}: `sktune profile` on profiles that public repositories have, and
its figures computed again with json and pandas, without code of sktune. *equal*: to half a nanosecond a kernel. *said*:
the figure rests on steps or kernels of which the command says that it is not sure. *not checked*: of a CPU's trace only
counts and times of operators are bounded, as which of them stand in for kernels is sktune's own rule. Of files of
the same content the first is listed."""


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
        kernels: columns device, step (NaN outside), start, duration and end (ticks), type, communicates.
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


def ticks(value: Any) -> float:
    """Return a time in microseconds as a whole number of ``TICKS``; NaN if it is none."""
    try:
        number = Decimal(str(value).strip()) * 10**6
        return int(number) if number.is_finite() else np.nan
    except InvalidOperation:
        return np.nan


def table_of(rows: Sequence[tuple[Any, ...]]) -> pd.DataFrame:
    """Return kernels from device, step, start, duration, type and communicates; times stay exact."""
    columns = ["device", "step", "start", "duration", "type", "communicates"]
    table = pd.DataFrame(rows, columns=columns).astype({"communicates": bool})
    for name in ("start", "duration"):
        table[name] = pd.Series([int(moment) for moment in table[name]], index=table.index, dtype=object)
    table["end"] = table["start"] + table["duration"]
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
        start, duration = ticks(row[plain["starttime"]]), ticks(row[plain["duration"]])
        where = row[core].strip() if core else ""
        if where not in CORES or not row[plain["name"]].strip() or pd.isna(start) or not duration >= 0:
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
        kind, start = str(event.get("cat")), ticks(event.get("ts"))
        if match := re.match(r"ProfilerStep\s*#\s*(\d+)", str(event.get("name"))):
            marks = steps.setdefault("device" if kind == "gpu_user_annotation" else "host", [])
            marks.append((start, start + ticks(event.get("dur", 0)), int(match[1])))
        elif kind in ("cuda_runtime", "cuda_driver", "hip_runtime") and "correlation" in args:
            launches[args["correlation"]] = start
    named = [each for each in events if isinstance(each, dict) and each.get("ph") == "M"]
    processes = {each["pid"]: each["args"]["name"] for each in named if each["name"] == "process_name"}
    threads = {(each["pid"], each["tid"]): each["args"]["name"] for each in named if each["name"] == "thread_name"}
    # A collective has a lane of its group; what it waits for and copies has others.
    groups = {place for place, name in threads.items() if re.fullmatch(r"Group .*|Communication Kernel", str(name))}
    collectives = {place for place in groups if processes.get(place[0]) in ("HCCL", "Communication")}
    devices = [pid for pid, name in processes.items() if name == "Ascend Hardware"]
    rows: list[tuple[Any, ...]] = []
    other = 0
    for event, args in zip(timed, arguments, strict=True):
        is_gpu, is_task = event.get("cat") in GPU, "Task Type" in args
        lane, name = (event.get("pid"), event.get("tid")), str(event.get("name"))
        is_unnamed = lane not in threads and processes.get(lane[0]) in ("HCCL", "Communication")
        is_collective = lane in collectives or (is_unnamed and name.lower().startswith("hcom_"))
        if not is_gpu and not is_task and not is_collective:
            continue
        start, duration = ticks(event.get("ts")), ticks(event.get("dur"))
        if pd.isna(start) or not duration >= 0 or (is_task and args["Task Type"] not in CORES):
            other += 1
            continue
        launched = launches.get(args.get("correlation"))
        step = at(start, steps.get("device") or steps.get("host", []))
        if launched is not None and steps.get("host"):
            step = at(launched, steps["host"])
        device = args.get("device", event.get("pid")) if is_gpu else devices[0] if len(devices) == 1 else event["pid"]
        communicates = is_collective or bool(re.search(r"nccl|rccl|^hcom_|^hccl", name, re.IGNORECASE))
        if communicates and is_task and collectives:
            continue
        rows.append((str(device), step, start, duration, function(name) if is_gpu else "", communicates))
    calls = [each for each in timed if str(each.get("cat")).endswith(("runtime", "driver"))]
    launching = {str(each["cat"]) for each in calls if re.search("launch|async", str(each["name"]), re.IGNORECASE)}
    strange = {str(each["cat"]) for each in timed if each.get("cat")} - {str(each["cat"]) for each in calls}
    unread = sorted(launching) + sorted(kind for kind in strange if not kind.lower().startswith(HOST))
    if rows:
        return Facts(table_of(rows), other, bool(steps))
    operators = [each for each in timed if each.get("cat") == "cpu_op"]
    found = [("cpu", np.nan, ticks(e["ts"]), ticks(e["dur"]), str(e["name"]), False) for e in operators]
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
    """Return the ticks that at least one of the rows covers."""
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
        each.append((span, computes, covered(rows[rows["communicates"]]), span - covered(rows), len(rows) * TICKS))
    medians = np.median(np.array(each, dtype=float), axis=0) / TICKS
    return {**dict(zip((*FIGURES, "kernels"), medians, strict=True)), "steps": len(each)}


def shown(facts: Facts) -> pd.DataFrame:
    """Return the kernels of the slowest device; what has no marks of steps is one step."""
    found = facts.kernels if facts.marked else facts.kernels.assign(step=0)
    devices = [rows for _, rows in found.groupby("device") if rows["step"].notna().any()]
    return max(devices, key=lambda rows: figures(rows)["step_ms"])


def slowest(facts: Facts) -> float:
    """Return the step of the slowest device."""
    return figures(shown(facts))["step_ms"]


Row = tuple[str, str, str, str]


def checked(facts: Facts, said: Said) -> Iterator[Row]:
    """Yield figure, sktune's value, the independent one, and the verdict."""
    stated = sum(int(count.replace(",", "")) for count in re.findall(r"(?:^|[|:] )(\d+)[^|]*? left out", said.warnings))
    unsure = said.says(r"found by repetition|taken as such|cannot be told apart|as one step") or not facts.marked
    if facts.is_of_host:
        if facts.unread:
            is_said = said.says("work to a device") and not said.event["bottleneck"]
            yield "of a device", "a CPU trace", ", ".join(facts.unread), "said" if is_said else "WRONG"
        limits = facts.kernels.groupby("type")["duration"].agg(["size", "sum"])
        for row in said.event["top"]:
            size, time = limits.loc[row["type"]]
            fits = row["count"] <= size and row["total_ms"] <= time / TICKS + 1e-6
            yield f"{row['type']}, at most", f"{row['count']}", f"{size}", "not checked" if fits else "WRONG"
        return
    outside = re.search(r"(\d+) of (\d+) kernels are outside of steps", said.warnings)
    yield (
        "left out",
        str(stated - (int(outside[1]) if outside else 0)),
        str(facts.other),
        _same(stated - (int(outside[1]) if outside else 0), facts.other, False),
    )
    rows = shown(facts)
    expected = figures(rows)
    count = re.search(r"(\d+) steps? of ([\d,]+) kernels", said.headline)
    own = {**said.event, "kernels": int(count[2].replace(",", "")) if count else -1}
    doubt = unsure and said.event["steps"] != expected["steps"]
    for name in ("steps", "kernels", *FIGURES):
        slack = 1 if name == "kernels" else 2e-6 + 0.5e-6 * expected["kernels"]
        yield name, f"{own[name]:.6g}", f"{expected[name]:.6g}", _same(own[name], expected[name], doubt, slack)
    inside = rows[rows["step"].notna()]
    missing = int(rows["step"].isna().sum())
    if facts.marked or outside:
        place = (int(outside[1]), int(outside[2])) if outside else (0, len(rows))
        yield (
            "outside of steps",
            f"{place[0]} of {place[1]}",
            f"{missing} of {len(rows)}",
            _same(hash(place), hash((missing, len(rows))), doubt),
        )
    total = float(inside["duration"].sum()) / TICKS
    share = sum(row["total_ms"] for row in said.event["top"]) / max(
        sum(row["share"] for row in said.event["top"]), 1e-9
    )
    yield "time of all kernels", f"{share:.6g}", f"{total:.6g}", _same(share, total, doubt, 1e-5 * total)
    types = inside.groupby("type")["duration"].agg(["size", "sum"])
    by_name = said.says("taken from their names") or (types.index == "").any()
    wrong = [
        row["type"]
        for row in said.event["top"]
        if row["type"] not in types.index
        or row["count"] != types.loc[row["type"], "size"]
        or abs(row["total_ms"] - types.loc[row["type"], "sum"] / TICKS) > 2e-6 + 0.5e-6 * row["count"]
    ]
    if not (types.index == "").all():
        right = f"{len(said.event['top']) - len(wrong)} of {len(said.event['top'])} equal"
        yield "operator types", right, ", ".join(wrong)[:60] or "all", _same(len(wrong), 0, doubt or by_name)


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
    said = ask(path)
    if said.refusal:
        return None, [refused(said)]
    facts = of_csv(opened(path)) if ".csv" in path.name else of_trace(opened(path))
    return facts, list(checked(facts, said)) if facts else [("-", "a profile", "none", "WRONG")]


def of_folder(folder: Path, files: Mapping[Path, Facts]) -> list[Row]:
    """Return the rows of a folder: those of its slowest file that is not said to be earlier, of the first kind."""
    said = ask(folder)
    if said.refusal:
        return [refused(said)]
    earlier = {folder / name for name in re.findall(r"(\S+) and \S+ are two recordings of one rank", said.warnings)}
    files = {path: facts for path, facts in files.items() if path not in earlier}
    kinds = ([path for path in files if path.is_relative_to(folder) and kind in path.name] for kind in IN_FOLDERS)
    of_kind = next(paths for paths in kinds if paths)
    return list(checked(max((files[path] for path in of_kind), key=slowest), said))


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
    sources = []
    for repository in options.repositories:
        source, _, place = repository.partition("=")
        sources.append(source)
        root = Path(place)
        read: dict[Path, Facts] = {}
        for path in profiles(root):
            if (content := hashlib.sha256(opened(path)).hexdigest()) in known:
                continue
            known.add(content)
            facts, rows = examined(path)
            note(path.relative_to(root).as_posix(), rows)
            if facts:
                read[path] = facts
        named = [path for path in read if any(name in path.name for name in IN_FOLDERS)]
        recordings = [parent for path in named for parent in path.parents if parent.name.endswith("_ascend_pt")]
        for folder in dict.fromkeys([*(path.parent for path in named), *(each.parent for each in recordings)]):
            note(f"{folder.relative_to(root).as_posix()}/", of_folder(folder, read))
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
        head = HEAD.format(day=datetime.now(UTC).strftime("%-d %B %Y"))
        text = ["# Profiles of others", "", head, "", f"{len(known)} different files: {summary}.", "", "Looked at:", ""]
        text += [f"* {source}" for source in sources]
        text += ["", "| profile | figure | sktune | pandas | verdict |", "| --- | --- | --- | --- | --- |", *lines]
        options.table.write_text("\n".join(text) + "\n", encoding="utf-8")
    return int("WRONG" in verdicts)


if __name__ == "__main__":
    sys.exit(main())
