"""Compares samplers on landscapes: the share of the achievable gain that they reach after a number of trials.

    python benchmarks/search.py --landscape synthetic --landscape sim-8 --samplers partition,tpe,random --seeds 100

A landscape is one of those in benchmarks/landscapes, or ``file.py:function``, a function of a seed that returns a
``benchmarks.landscape.Landscape``. Each seed determines the landscape's parameters, if any, the noise, and the
sampler's random state; all samplers get the same. A sampler is one of Optuna's (``tpe``, with independent parameters,
``tpe-multivariate``, ``gp``, ``random``), a strategy of Kernel Tuner as ``kt-NAME`` (needs the extra ``bench``),
another strategy of sktune, or your own ``module:function``; on devices also ``oracle``, which knows their law.
"""

import argparse
import importlib.util
import json
import math
import multiprocessing
import platform
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from optuna.samplers import BaseSampler
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script can only import modules beside it

from benchmarks.landscape import Landscape, Run, replay  # noqa: E402
from benchmarks.landscapes.device_oracle import oracle  # noqa: E402
from benchmarks.landscapes.devices import DEVICES, DeviceLandscape  # noqa: E402
from benchmarks.landscapes.failing import Thinnable, with_failures  # noqa: E402
from benchmarks.landscapes.recorded import RECORDED  # noqa: E402
from benchmarks.landscapes.simulated import SIMULATED  # noqa: E402
from benchmarks.landscapes.synthetic import SYNTHETIC  # noqa: E402
from sktune.backends.this_machine import device_name, package_version  # noqa: E402
from sktune.core.errors import BadInputError, SktuneError, nearest  # noqa: E402
from sktune.core.space import SearchSpace  # noqa: E402
from sktune.samplers import find_strategy  # noqa: E402
from sktune.study.strategy import Strategy  # noqa: E402

SAMPLERS = (
    "partition", "tpe", "tpe-multivariate", "gp", "random",
    "kt-bayes_opt", "kt-genetic_algorithm", "kt-greedy_ils", "kt-dual_annealing",
)  # fmt: skip
TARGET = 0.95
LEARNING_TRIALS = 10
"""Failures count after this many trials."""

Source = Callable[[int], Landscape]
Replay = Callable[[Landscape, int, int, bool, int, bool], Run]
"""Takes a landscape, trials, a seed, whether scope times are shown, workers, and whether figures choose incumbents."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of one sampler on one landscape, over all seeds.

    Attributes:
        landscape, sampler, seeds: that were run.
        gain: by number of trials, median and 5th percentile over seeds of the share of the achievable gain.
        trials_to_95: median over seeds of the first trial whose incumbent reaches 0.95; None if most never do.
        failed_share: of the trials after the tenth.
        ask_ms: median time of a proposal, the sampler's own.
    """

    landscape: str
    sampler: str
    seeds: int
    gain: Mapping[str, Mapping[str, float]]
    trials_to_95: float | None
    failed_share: float
    ask_ms: float

    def to_dict(self) -> dict[str, Any]:
        """Return the line that ``--json`` prints."""
        return {name: getattr(self, name) for name in self.__slots__}


def main() -> None:
    """Run the benchmark."""
    arguments = _arguments()
    console = Console(stderr=True)
    try:
        samplers = list(_available(arguments.samplers.split(","), console))
        summaries = compare(arguments.landscape or [*SYNTHETIC, *SIMULATED, *RECORDED], samplers, arguments)
    except SktuneError as failure:
        console.print(f"error: {failure}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(failure.exit_code)
    if arguments.json:
        for summary in summaries:
            print(json.dumps(summary.to_dict()))
    else:
        Console().print(_table(summaries, arguments))
    if arguments.output:
        arguments.output.write_text(markdown(summaries, arguments))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--landscape", action="append", metavar="NAME", help="repeatable; default: all but failing-NAME"
    )
    parser.add_argument("--samplers", default=",".join(SAMPLERS), metavar="A,B")
    parser.add_argument("--seeds", type=int, default=100, metavar="N")
    parser.add_argument("--trials", type=int, default=40, metavar="N")
    parser.add_argument("--at", type=_numbers, default=(10, 20, 40), metavar="N,N", help="trials to state gains at")
    parser.add_argument(
        "--by-figure", action="store_true", help="choose incumbents by lowest figure, whatever a model expects"
    )
    parser.add_argument("--no-scope-times", action="store_true", help="only show samplers the step's latency")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="concurrent trials")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes, which share the seeds")
    parser.add_argument("--json", action="store_true", help="a line for each landscape and sampler")
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="write the table there, too")
    arguments = parser.parse_args()
    for name in ("seeds", "trials", "workers", "jobs"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    return arguments


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def landscape_source(name: str) -> Source:
    """Return a function that makes the landscape ``name`` from a seed.

    Raises:
        BadInputError: there is no such landscape, or the file cannot be imported.
    """
    thinnable: Mapping[str, Callable[[int], Thinnable]] = {**SIMULATED, **RECORDED, **DEVICES}
    failing = {f"failing-{base}": partial(with_failures, source) for base, source in thinnable.items()}
    known: Mapping[str, Source] = {**SYNTHETIC, **thinnable, **failing}
    if name in known:
        return known[name]
    path, colon, function = name.rpartition(":")
    if not colon:
        raise BadInputError(f"unknown landscape {name!r}{nearest(name, known)} (or file.py:function of your own)")
    try:
        location = importlib.util.spec_from_file_location(Path(path).stem, path)
        if location is None or location.loader is None:
            raise ImportError("it is not a Python file")
        module = importlib.util.module_from_spec(location)
        location.loader.exec_module(module)
        source: Source = getattr(module, function)
    except (ImportError, AttributeError, OSError, SyntaxError) as failure:
        raise BadInputError(
            f"--landscape {name}: {failure}; give file.py:function, a function of a seed that returns a landscape"
        ) from failure
    return source


def _available(names: Sequence[str], console: Console) -> Iterator[str]:
    for name in names:
        try:
            contender(name)
            yield name
        except BadInputError as failure:
            if name != "partition" and name not in SAMPLERS:
                raise
            console.print(f"{name} is left out: {failure}", markup=False, highlight=False, soft_wrap=True)


def contender(name: str) -> Replay:
    """Return a function that searches with the sampler ``name``.

    Raises:
        BadInputError: there is no such sampler, or its package is missing.
    """
    if name == "oracle":
        return _oracle
    if name.startswith("kt-"):
        return _kernel_tuner(name.removeprefix("kt-"))
    strategy = _OPTUNA.get(name) or find_strategy(name)

    def search(landscape: Landscape, trials: int, seed: int, scope_times: bool, workers: int, by_figure: bool) -> Run:
        return replay(landscape, strategy, trials, seed, scope_times, workers, by_figure)

    return search


def _oracle(landscape: Landscape, trials: int, seed: int, scope_times: bool, workers: int, by_figure: bool) -> Run:
    if not isinstance(landscape, DeviceLandscape):
        raise BadInputError(f"there is no oracle for {landscape.name}; it knows the laws of devices alone")
    return replay(landscape, oracle(landscape), trials, seed, scope_times, workers, by_figure)


def _kernel_tuner(strategy: str) -> Replay:
    try:
        from benchmarks import kernel_tuner_search
    except ImportError as failure:
        raise BadInputError(f"{failure}; install it with: pip install -e '.[bench]'") from failure
    if strategy not in kernel_tuner_search.STRATEGIES:
        raise BadInputError(
            f"Kernel Tuner has no strategy {strategy!r}{nearest(strategy, kernel_tuner_search.STRATEGIES)}"
        )

    def search(
        landscape: Landscape, trials: int, seed: int, scope_times: bool, workers: int, by_figure: bool  # noqa: ARG001
    ) -> Run:  # fmt: skip
        # Its simulation asks for one point after the other, and knows nothing about scopes.
        return kernel_tuner_search.replay(landscape, strategy, trials, seed)

    return search


def _independent_tpe(space: SearchSpace, seed: int) -> BaseSampler:  # noqa: ARG001
    # Since Optuna 5 the multivariate one is the default, and also sktune's strategy ``tpe``.
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=6, multivariate=False)


def _multivariate_tpe(space: SearchSpace, seed: int) -> BaseSampler:  # noqa: ARG001
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=6, multivariate=True)


def _gp(space: SearchSpace, seed: int) -> BaseSampler:  # noqa: ARG001
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=6)


_OPTUNA: Mapping[str, Strategy] = {
    name: Strategy(name, make)
    for name, make in {"tpe": _independent_tpe, "tpe-multivariate": _multivariate_tpe, "gp": _gp}.items()
}


def compare(landscapes: Sequence[str], samplers: Sequence[str], arguments: argparse.Namespace) -> list[Summary]:
    """Run every sampler on every landscape with every seed."""
    torch.set_num_threads(1)  # the processes share the cores
    for name in landscapes:
        landscape_source(name)(0).best_ms  # noqa: B018 - compute what all seeds share before forking
    run = partial(
        _run_seed,
        samplers,
        arguments.trials,
        scope_times=not arguments.no_scope_times,
        workers=arguments.workers,
        by_figure=arguments.by_figure,
    )
    tasks = [(name, seed) for name in landscapes for seed in range(arguments.seeds)]
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("fork")) as pool:
        futures = [pool.submit(run, *task) for task in tasks]
        for future in track(as_completed(futures), "searches", len(tasks), console=Console(stderr=True)):
            future.result()  # a failure ends the benchmark immediately
    found = {task: future.result() for task, future in zip(tasks, futures, strict=True)}
    return [
        summarise(name, sampler, [found[name, seed][sampler] for seed in range(arguments.seeds)], arguments)
        for name in landscapes
        for sampler in samplers
    ]


def _run_seed(
    samplers: Sequence[str],
    trials: int,
    landscape: str,
    seed: int,
    *,
    scope_times: bool,
    workers: int,
    by_figure: bool,
) -> dict[str, Run]:
    land = landscape_source(landscape)(seed)
    runs = ((name, contender(name)(land, trials, seed, scope_times, workers, by_figure)) for name in samplers)
    return {name: replace(run, plans=(), trials=()) for name, run in runs}  # these are large, and not needed


def summarise(landscape: str, sampler: str, runs: Sequence[Run], arguments: argparse.Namespace) -> Summary:
    """Return the summary of ``runs``, one for each seed."""
    trials: int = arguments.trials
    # A strategy that ends early keeps its last gain.
    gains = np.array([(*run.gains, *[run.gains[-1]] * (trials - len(run.gains))) for run in runs])
    reached = [float(np.argmax(row >= TARGET)) + 1 if (row >= TARGET).any() else math.inf for row in gains]
    to_target = statistics.median(reached)
    failed = [flag for run in runs for flag in run.failed[LEARNING_TRIALS:]]
    asks = [seconds for run in runs for seconds in run.ask_s if seconds]
    return Summary(
        landscape=landscape,
        sampler=sampler,
        seeds=len(runs),
        gain={
            str(trial): {
                "median": round(float(np.median(gains[:, trial - 1])), 4),
                "p05": round(float(np.quantile(gains[:, trial - 1], 0.05)), 4),
            }
            for trial in arguments.at
            if trial <= trials
        },
        trials_to_95=to_target if math.isfinite(to_target) else None,
        failed_share=round(statistics.fmean(failed), 4) if failed else 0.0,
        ask_ms=round(1e3 * statistics.median(asks), 3) if asks else 0.0,
    )


def table_rows(summaries: Sequence[Summary], arguments: argparse.Namespace) -> tuple[list[str], list[list[str]]]:
    """Return the heads and the rows of a table."""
    at = [trial for trial in arguments.at if trial <= arguments.trials]
    heads = ["landscape", "sampler", *(f"gain at {trial} (p05)" for trial in at)]
    heads += ["trials to 0.95", "failed share", "ask ms"]
    rows = []
    for each in summaries:
        gains = [f"{each.gain[str(trial)]['median']:.3f} ({each.gain[str(trial)]['p05']:.3f})" for trial in at]
        reached = f"> {arguments.trials}" if each.trials_to_95 is None else f"{each.trials_to_95:g}"
        rows.append([each.landscape, each.sampler, *gains, reached, f"{each.failed_share:.1%}", f"{each.ask_ms:.2f}"])
    return heads, rows


def _table(summaries: Sequence[Summary], arguments: argparse.Namespace) -> Table:
    heads, rows = table_rows(summaries, arguments)
    table = Table(*heads, title=f"{arguments.seeds} seeds, gain as median and 5th percentile")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def markdown(summaries: Sequence[Summary], arguments: argparse.Namespace) -> str:
    """Return the table as a page, with machine and versions."""
    heads, rows = table_rows(summaries, arguments)
    # The path of the page is left out.
    options = [word for before, word in pairwise(sys.argv) if "--output" not in (before, word.partition("=")[0])]
    packages = ("sktune", "optuna", "kernel_tuner", "numpy")
    versions = ", ".join(f"{name} {package_version(name)}" for name in packages)
    meaning = (
        f"{arguments.seeds} seeds, {arguments.trials} trials, {arguments.workers} at a time, scope times "
        f"{'withheld' if arguments.no_scope_times else 'shown'}. Gain is the share of the achievable gain that the "
        f"incumbent holds by its true latency: median over seeds (5th percentile). {_incumbents(arguments)} "
        "Trials to 0.95 are the median over "
        f"seeds; failures are counted after trial {LEARNING_TRIALS}; ask is the median of the sampler's own time."
    )
    lines = [
        f"# python benchmarks/search.py {shlex.join(options)}",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}; {device_name('cpu')}; Python {platform.python_version()}, {versions}",
        "",
        meaning,
        "",
        "| " + " | ".join(heads) + " |",
        "| --- | --- |" + " ---: |" * (len(heads) - 2),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _incumbents(arguments: argparse.Namespace) -> str:
    lowest = "the trial of the lowest figure"
    if arguments.by_figure:
        return f"The incumbent is {lowest}."
    return f"The incumbent is the trial that the sampler expects to save the most (partition), else {lowest}."


if __name__ == "__main__":
    main()
