"""A search of each preset on this machine; on a GPU, with and without CUDA graphs.

    python -m benchmarks.presets [--device cuda] [--scale small] [--trials 12] [--time-budget 180] --out FILE.md

The spaces are those of the presets, where ``cuda_graph`` has only one value. Prints the final comparison of each
search and why trials were pruned, and writes them with the machine's description after each search.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import sktune
from sktune.backends.this_machine import device_name, package_version
from sktune.core.errors import SktuneError
from sktune.reports.study import final_table
from sktune.study.result import SearchResult
from sktune.targets import presets


def main() -> None:
    """Search, and write a table after each search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", default="small")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--time-budget", type=float, default=180.0, metavar="SECONDS", help="of each search")
    parser.add_argument("--models", nargs="+", default=presets.preset_names())
    parser.add_argument("--graphs", nargs="+", choices=("without", "with"), default=("without", "with"))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    machine = f"torch {package_version('torch')}, Python {sys.version.split()[0]}; {device_name(arguments.device)}"
    lines = [f"# python -m benchmarks.presets {' '.join(sys.argv[1:])}, {time.strftime('%Y-%m-%d')}", "", machine, ""]
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models:
            for graph in [name == "with" for name in arguments.graphs] if arguments.device == "cuda" else [None]:
                lines += [f"## {model}{_graph_words(graph)}", "", *searched(model, graph, arguments, Path(folder)), ""]
                arguments.out.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


def searched(model: str, graph: bool | None, arguments: argparse.Namespace, folder: Path) -> Iterator[str]:
    """Search one preset, and return the lines of its section."""
    began = time.perf_counter()
    runs = folder / f"{model}-{graph}"
    try:
        result = sktune.search(
            model,
            trials=arguments.trials,
            time_budget_s=arguments.time_budget,
            scale=arguments.scale,
            device=arguments.device,
            space=space_file(model, graph, folder),
            runs=runs,
            listener=progress,
        )
    except SktuneError as error:
        yield f"failed: {error}"
        return
    pruned = [record for record in result.trials if record.outcome and not record.outcome.is_feasible]
    seconds = time.perf_counter() - began
    yield f"{result.facts.description}; {len(result.trials)} trials, {len(pruned)} pruned, {seconds:.0f} s. {result}"
    yield from ("", "| | ms per step | speedup | 95% interval | bits |", "| --- | ---: | ---: | --- | --- |")
    for cells in final_table(result).rows:
        yield f"| {' | '.join(map(str, cells))} |"
    for row in result.final:
        if row.bit_identical is False:
            yield f"\n{row.name}: {row.verdict[:400]}"
    for record in pruned:
        assert record.outcome
        yield f"\ntrial {record.number}: {record.outcome.reason}: {str(record.outcome.detail)[:400]}"
    yield from slowest(result)


def slowest(result: SearchResult) -> Iterator[str]:
    """Return where the trials' time went."""
    stages: dict[str, float] = {}
    for record in result.trials:
        for stage, seconds in (record.outcome.seconds if record.outcome else {}).items():
            stages[stage] = stages.get(stage, 0.0) + seconds
    yield ""
    yield "Seconds of all trials: " + ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in stages.items()) + "."


def space_file(model: str, graph: bool | None, folder: Path) -> Path:
    """Write the preset's space, with CUDA graphs always or never, and return the file."""
    document = yaml.safe_load((presets.folder() / f"{model}.yaml").read_text(encoding="utf-8"))
    if graph is not None:
        document["space"]["options"]["inductor"]["cuda"]["cuda_graph"] = [graph]
    path = folder / f"{model}-{graph}.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def progress(event: dict[str, Any]) -> None:
    """Tell on standard error when something of interest happens."""
    if event["event"] in {"target_ready", "trial_finished", "final_started", "warning", "note"}:
        print(f"{time.strftime('%H:%M:%S')} {str(event)[:300]}", file=sys.stderr, flush=True)


def _graph_words(graph: bool | None) -> str:
    return "" if graph is None else ", CUDA graphs" if graph else ", no CUDA graphs"


if __name__ == "__main__":
    main()
