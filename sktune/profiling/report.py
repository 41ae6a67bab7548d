"""``sktune profile`` as a function: read, analyse, compare, draw.

The drawing is one self-contained HTML page with the timeline of a step by layer, unit and stream.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from sktune.ascend.cann_log import explain_files
from sktune.ascend.fusion import RealisedFusion, realised_fusion
from sktune.ascend.ge_graph import read_ge_graph
from sktune.ascend.graph_log import fusion_of_log
from sktune.core.errors import BadInputError, ProfileError
from sktune.core.files import real_path, write_text
from sktune.profiling.analysis import Profile, analyse
from sktune.profiling.comparison import MatchedProfiles, compare
from sktune.profiling.readers.reading import read_profile
from sktune.profiling.structure import NO_LAYER, main_stream
from sktune.profiling.tables import comparison_tables, headline, overview, profile_tables

FOLDER = "profiles"


@dataclass(frozen=True, slots=True, eq=False)
class ProfileReport:
    """An analysed profile, its comparison with a candidate if there is one, and the path of the page."""

    profile: Profile
    comparison: MatchedProfiles | None
    picture: Path

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to trust the figures less, with the profile that they are about if there are two."""
        if not self.comparison:
            return self.profile.warnings
        both = (("baseline", self.profile), ("candidate", self.comparison.candidate))
        return tuple(f"{label}: {line}" for label, profile in both for line in profile.warnings)


def report(path: Path, candidate: Path | None, picture: Path | None, runs: Path) -> ProfileReport:
    """Analyse the profile at ``path``, compare it with ``candidate``, and draw both on the same time axis.

    Args:
        picture: where to write the page; by default in the folder ``profiles`` of ``runs``, named after the file.

    Raises:
        ProfileError: a file cannot be read or written, or is not a profile.
    """
    profile = analyse(read_profile(path))
    comparison = compare(profile, analyse(read_profile(candidate))) if candidate else None
    name = _name(path) + (f"-{_name(candidate)}" if candidate else "")
    title = f"{path.name} against {candidate.name}" if candidate else path.name
    where = picture or runs / FOLDER / f"{name}.html"
    found = ProfileReport(profile, comparison, where)
    shown = [("baseline" if comparison else "", profile)]
    tables = profile_tables(profile)
    if comparison:
        shown.append(("candidate", comparison.candidate))
        tables = comparison_tables(comparison) + tables
    data = {
        "title": title,
        "headlines": [f"{label}: {headline(each)}" if label else headline(each) for label, each in shown],
        "warnings": found.warnings,
        "profiles": [{"label": label, **_drawn(each)} for label, each in shown],
        "tables": [{name: getattr(table, name) for name in ("title", "columns", "rows", "note")} for table in tables],
    }
    # Names come from files; "<" could end the script element.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        write_text(where, _PAGE.read_text(encoding="utf-8").replace('"SKTUNE_DATA"', text))
    except OSError as failure:
        raise ProfileError(f"{where} cannot be written ({failure}); give another path with --html") from failure
    return found


def fusion_of_files(graph: Path, fused: Sequence[Path], profile: Path | None, logs: Sequence[Path]) -> RealisedFusion:
    """Return how the scopes marked in ``graph`` were fused, from GE's dumps, a profile and CANN's logs.

    If ``graph`` is a folder, it is graph-autofusion's log of a captured graph, which says all of it.

    Raises:
        BadInputError: a file cannot be read, or is not of the expected kind.
    """
    if graph.is_dir():
        if fused or profile or logs:
            raise BadInputError(f"{graph} is the log of a captured graph, which needs no other file; give it alone")
        return fusion_of_log(graph)
    marked = read_ge_graph(graph)
    labels = list(marked.by_scope())
    if not labels:
        raise BadInputError(f"{graph} has no scopes; give TorchAir's dump of a step that was compiled with scopes")
    types = {operator.name: operator.type for operator in marked.operators}
    return realised_fusion(
        marked=marked,
        fused=[read_ge_graph(path) for path in fused],
        kernels=read_profile(profile).frame if profile else None,
        explanations=explain_files(logs, labels, types),
        labels=labels,
    )


def _name(path: Path) -> str:
    """Return a name for the page, with the profiler's folder if any: many files are called kernel_details.csv."""
    path = real_path(path)
    stem = path.name.partition(".")[0]
    for parent in path.parents:
        if parent.name.endswith("_ascend_pt"):
            return f"{parent.name}-{stem}"
    return stem or "profile"


MAX_KERNELS = 50_000
"""Only this many kernels of a step are drawn, so that a browser can handle the page."""

_PAGE = Path(__file__).parent / "timeline.html"


def _drawn(profile: Profile) -> dict[str, Any]:
    """Return the shown step, times in microseconds from its start."""
    rows = profile.kernels[profile.kernels["step"] == profile.shown_step].head(MAX_KERNELS)
    start = (rows["start_us"] - rows["start_us"].iloc[0]).round(3)
    end = (start + rows["duration_us"]).round(3)
    streams = sorted(rows["stream"].unique(), key=lambda stream: (stream != main_stream(rows), stream))
    types, units = list(rows["type"].unique()), list(rows["unit"].unique())
    idle = rows["idle_us"].round(3).to_numpy()
    on_main = (rows["stream"] == streams[0]).to_numpy()
    spans = rows.assign(start=start, end=end)[on_main]
    return {
        "overview": overview(profile) + (f"; the first {MAX_KERNELS} are drawn" if len(rows) == MAX_KERNELS else ""),
        "step": profile.shown_step,
        "total_us": float(end.max()),
        "streams": streams,
        "types": types,
        "units": units,
        "kernels": [
            list(row)
            for row in zip(
                start.tolist(),
                rows["duration_us"].round(3).tolist(),
                [streams.index(stream) for stream in rows["stream"]],
                [types.index(kind) for kind in rows["type"]],
                [units.index(unit) for unit in rows["unit"]],
                rows["layer"].tolist(),
                rows["is_superkernel"].astype(int).tolist(),
                rows["name"].tolist(),
                strict=True,
            )
        ],
        "gaps": [[begin - gap, gap] for begin, gap in zip(start.tolist(), idle.tolist(), strict=True) if gap > 0],
        "layers": _runs(spans, ["layer", "kind"]),
        "unit_spans": _runs(spans, ["layer", "unit"]),
    }


def _runs(rows: pd.DataFrame, columns: Sequence[str]) -> list[list[Any]]:
    """Return start, end and values of each run of kernels with equal values; outside of layers only for units."""
    runs = []
    table = zip(*(rows[name].tolist() for name in (*columns, "start", "end")), strict=True)
    for values, stretch in groupby(table, key=lambda row: row[: len(columns)]):
        kernels = list(stretch)
        if values[0] != NO_LAYER or "unit" in columns:
            runs.append([kernels[0][-2], max(kernel[-1] for kernel in kernels), *values])
    return runs
