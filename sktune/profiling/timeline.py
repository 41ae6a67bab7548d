"""The page of a profile: one self-contained HTML file with the timeline of a step by layer, unit and stream."""

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from sktune.core.errors import ProfileError
from sktune.core.files import write_text
from sktune.profiling.analysis import Profile
from sktune.profiling.comparison import MatchedProfiles
from sktune.profiling.structure import NO_LAYER, main_stream
from sktune.profiling.tables import FigureTable, comparison_tables, headline, overview, profile_tables

MAX_KERNELS = 50_000
"""Only this many kernels of a step are drawn, so that a browser can handle the page."""

_PAGE = Path(__file__).parent / "timeline.html"


def render(profile: Profile, title: str, comparison: MatchedProfiles | None = None) -> str:
    """Return the page: ``profile``, and below it the candidate of ``comparison``, if given, on the same time axis."""
    shown = [("baseline" if comparison else "", profile)]
    tables = profile_tables(profile)
    if comparison:
        shown.append(("candidate", comparison.candidate))
        tables = comparison_tables(comparison) + tables
    data = {
        "title": title,
        "headlines": [f"{label}: {headline(each)}" if label else headline(each) for label, each in shown],
        "warnings": [f"{label}: {line}" if label else line for label, each in shown for line in each.warnings],
        "profiles": [{"label": label, **_drawn(each)} for label, each in shown],
        "tables": [_plain(table) for table in tables],
    }
    # Names come from files; "<" could end the script element.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return _PAGE.read_text(encoding="utf-8").replace('"SKTUNE_DATA"', text)


def write(page: str, path: Path) -> Path:
    """Write ``page``, creating its folder.

    Raises:
        ProfileError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, page)
    except OSError as failure:
        raise ProfileError(f"{path} cannot be written ({failure}); give another path with --html") from failure
    return path


def _plain(table: FigureTable) -> dict[str, Any]:
    return {"title": table.title, "columns": table.columns, "rows": table.rows, "note": table.note}


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
