"""TorchAir and npugraph_ex of the torch_npu releases that users have: the conformance suites, and what differs.

    SKTUNE_NPU_ENVS=FOLDER python -m benchmarks.front_ends [--only 2.8.0.post4,2.14.0]

Each release has an environment of its own below the folder, made if it is not there (``benchmarks/npu_env.py``;
those of torch 2.8 and 2.10 take 7 GB each). There, what its front ends have is read from themselves, and the suites
``tests/torchair`` and ``tests/npugraph_ex`` run. Rows of releases that are not asked for stay as they are.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.npu_env import RELEASES
from benchmarks.npu_names import PACKAGES

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "benchmarks" / "data" / "front_ends.jsonl"
PAGE = ROOT / "docs" / "reference" / "front-ends.md"
ENVIRONMENTS = "SKTUNE_NPU_ENVS"
SUITES: Mapping[str, Sequence[str]] = {"torchair": (), "npugraph_ex": ("--dist", "loadfile")}
"""The conformance suites, with their own words for pytest."""
NOTES = """
* torch_npu 2.8.0.post4 passes npugraph_ex's settings on as texts, some under other names, such as
  `_aclnn_static_shape_kernel` for `static_kernel_compile`.
* The wheels of torch_npu 2.8.0.post4 and 2.10.0.post4 ask for the CPU build of torch by its version, `2.8.0+cpu`.
* torch_npu 2.14.0 beside a build of torch for CUDA ends the process when it is imported (`Duplicated key
  'pinned_reserve_segment_size_mb'`). The environments here work around it.
* The named dimensions that 2.13.0 does not convert any more are gone from torch itself.
* The Python files of both front ends are the same in the wheels of torch_npu 2.13.0 and 2.14.0.
* torch 2.8.0 refuses shapes that depend on values with `Unsupported: Dynamic shape operator`, 2.13.0 with
  `GuardOnDataDependentSymNode`.
* transformers 5.0.0 has static KV caches that do not count positions; sktune counts them.
"""
"""Differences that are no names."""
COUNTS = ("tests", "failures", "errors", "skipped")


@dataclass(frozen=True, slots=True)
class Row:
    """One release.

    Attributes:
        release: of torch_npu.
        versions: of the packages beside it, and of Python.
        date: of the run.
        suites: by name, how many tests there are, failed, ended in an error, or were skipped.
        failed: names of the tests that did not pass.
        facts: by what they are about, names that the front ends have; see ``benchmarks.npu_names``.
    """

    release: str
    versions: dict[str, str]
    date: str
    suites: dict[str, dict[str, int]]
    failed: list[str]
    facts: dict[str, list[str]]


def main() -> None:
    """Run the suites in each environment, and write rows and page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(RELEASES), help="releases of torch_npu, separated by commas")
    arguments = parser.parse_args()
    if ENVIRONMENTS not in os.environ:
        parser.error(f"{ENVIRONMENTS} must name the folder of the environments")
    rows = read_rows()
    for release in arguments.only.split(","):
        rows[release] = run(release, Path(os.environ[ENVIRONMENTS]).absolute() / release)
        print(f"{release}: {rows[release].suites}", flush=True)
        lines = [json.dumps(asdict(rows[name])) for name in RELEASES if name in rows]
        ROWS.write_text("\n".join([*lines, ""]), encoding="utf-8")
    PAGE.write_text("\n".join([*page(read_rows()), ""]), encoding="utf-8")


def read_rows() -> dict[str, Row]:
    """Return the stored rows, by release, the oldest first."""
    lines = ROWS.read_text(encoding="utf-8").splitlines() if ROWS.exists() else []
    return {row.release: row for row in (Row(**json.loads(line)) for line in lines)}


def run(release: str, folder: Path) -> Row:
    """Look at one release and run the suites in its environment."""
    python = folder / "bin" / "python"
    if not (folder / "lib").exists():
        make = ROOT / "benchmarks" / "npu_env.py"
        subprocess.run([sys.executable, str(make), "--torch-npu", release, str(folder)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    words = [str(python), "-m", "benchmarks.npu_names"]
    answer = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    seen = json.loads(answer.stdout.splitlines()[-1])
    suites: dict[str, dict[str, int]] = {}
    failed: list[str] = []
    for suite, more in SUITES.items():
        report = folder / f"{suite}.xml"
        report.unlink(missing_ok=True)
        words = [str(python), "-m", "pytest", "-q", "-n", "2", *more, f"--junitxml={report}", f"tests/{suite}"]
        subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, check=False)
        counts, names = outcome(report)
        suites[suite] = counts
        failed += names
    return Row(release, seen["versions"], f"{datetime.now(UTC):%Y-%m-%d}", suites, failed, seen["facts"])


def outcome(report: Path) -> tuple[dict[str, int], list[str]]:
    """Return the counts of pytest's report, and the names of the tests that did not pass."""
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    bad = [
        case for case in suite.iter("testcase") if case.find("failure") is not None or case.find("error") is not None
    ]
    names = sorted(f"{case.get('classname')}.{case.get('name')}" for case in bad)
    return {name: int(suite.get(name, "0")) for name in COUNTS}, names


def page(rows: Mapping[str, Row]) -> Iterator[str]:
    """Return the lines of the page."""
    yield "# Front ends"
    yield ""
    yield "What TorchAir and npugraph_ex of several torch_npu releases have, and whether sktune's conformance suites"
    yield "pass against them, without a device: graph construction, scopes, options, numerics of the converted graph,"
    yield "refusals, plans in source code. GE's compilation, fusion and timing need a device. Written by:"
    yield ""
    yield "```bash"
    yield "SKTUNE_NPU_ENVS=FOLDER python -m benchmarks.front_ends"
    yield "```"
    yield ""
    yield from table(["", *rows], _overview(rows))
    for release, row in rows.items():
        for name in row.failed:
            yield f"* torch_npu {release}: `{name}` did not pass."
    yield ""
    yield "## What differs"
    yield ""
    yield "Each line compares a release with the one before it; what is not listed is the same."
    yield ""
    yield from table(["release", "what", "new", "gone"], _differences(rows))
    yield ""
    yield NOTES.removeprefix("\n")
    yield "## Options of npugraph_ex's SuperKernels, by release"
    yield ""
    yield "The releases above were run; of the others, the wheel was read. A plan with an option that the installed"
    yield "torch_npu lacks is refused before anything is compiled, and a search does not try it."
    yield ""
    yield from table(["torch_npu", "options", "None as a scope of TorchAir", "tested"], _releases())


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Return the lines of a table."""
    for cells in (heads, ["---"] * len(heads), *rows):
        yield f"| {' | '.join(cells)} |"


def _overview(rows: Mapping[str, Row]) -> Iterator[list[str]]:
    for name in ("python", *PACKAGES):
        yield [name, *(row.versions[name] for row in rows.values())]
    yield ["run on", *(row.date for row in rows.values())]
    for suite in SUITES:
        yield [f"`tests/{suite}`: passed", *(_passed(row.suites[suite]) for row in rows.values())]
    yield ["operators with a converter", *(str(len(row.facts["operators with a converter"])) for row in rows.values())]


def _passed(counts: Mapping[str, int]) -> str:
    left_out = counts["skipped"]
    passed = counts["tests"] - counts["failures"] - counts["errors"] - left_out
    return f"{passed} of {counts['tests']}" + (f", {left_out} skipped" if left_out else "")


def _differences(rows: Mapping[str, Row]) -> Iterator[list[str]]:
    releases = list(rows)
    for before, after in itertools.pairwise(releases):
        found = False
        for what, names in rows[after].facts.items():
            old = rows[before].facts[what]
            new, gone = ([name for name in ours if name not in theirs] for ours, theirs in ((names, old), (old, names)))
            if new or gone:
                found = True
                yield [after, what, _names(new), _names(gone)]
        if not found:
            yield [after, "nothing", "", ""]


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name.replace('|', chr(92) + '|')}`" for name in names)


def _releases() -> Iterator[list[str]]:
    from sktune.ascend.front_ends import front_ends

    every = front_ends()[-1].superkernel
    for each in front_ends():
        options = "all of the newest" if each.superkernel == every else _names(each.superkernel) or "no npugraph_ex"
        yield [each.torch_npu, options, "yes" if each.takes_none else "no", "yes" if each.is_tested else "read"]


if __name__ == "__main__":
    main()
