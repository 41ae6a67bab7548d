"""How well a search finds out what a device is: the constants of devices whose law is known, after ten trials.

    python benchmarks/device_constants.py --first 100 --seeds 100 --output FILE.md

A constant matters if it is worth more than 2% of the step, counted over all operators that can be fused. The table has
the relative error of what ``sktune show --why`` prints, by constant.
"""

import argparse
import multiprocessing
import platform
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import optuna
import torch
from optuna.trial import create_trial

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script can only import modules beside it

from benchmarks.landscape import Record, replay  # noqa: E402
from benchmarks.landscapes.devices import DEVICES, DeviceLandscape  # noqa: E402
from sktune.backends.this_machine import device_name  # noqa: E402
from sktune.core.codec import encoded  # noqa: E402
from sktune.core.events.studies import DeviceConstant  # noqa: E402
from sktune.learning.attributes import OUTCOME, PROBE  # noqa: E402
from sktune.learning.device import SUMS, found  # noqa: E402
from sktune.learning.history import Learned  # noqa: E402
from sktune.samplers.partition import PARTITION  # noqa: E402
from sktune.study.strategy import distributions  # noqa: E402

MATTERS = 0.02
LOADING = ("fetch", "contention", "copy")


def learned_on(landscape: DeviceLandscape, trials: int, seed: int) -> Learned:
    """Return what is known after a search, as ``sktune show --why`` does."""
    record = Record(landscape, seed)
    wanted = distributions(landscape.space)
    point = {name: values[0] for name, values in landscape.space.choices.items()}
    kept = []
    for plan in dict.fromkeys(replay(landscape, PARTITION, trials, seed).plans):
        outcome = record.judge(plan)
        assert outcome.speedup
        # As probes, plans need no parameters.
        attributes = {PROBE: encoded(plan), OUTCOME: encoded(outcome)}
        kept.append(create_trial(
            params=point, distributions=wanted, value=outcome.speedup.latency_ms, user_attrs=attributes,
        ))  # fmt: skip
    for number, trial in enumerate(kept):
        trial.number = number
    learned = Learned(landscape.space)
    learned.read_once(kept)
    return learned


def truth(landscape: DeviceLandscape) -> dict[str, float]:
    """Return the true value of each of ``SUMS``, in us."""
    us: Mapping[str, float] = landscape.device.us
    terms = {f"{name.replace(' ', '_')}_us": value for name, value in us.items()}
    terms |= {f"icache_{name}_us": us[name] for name in LOADING}
    return {name: sum(factor * terms[term] for term, factor in parts.items()) for name, parts in SUMS.items()}


def errors(source: str, trials: int, seed: int) -> dict[str, tuple[float, DeviceConstant, float]]:
    """Return the relative error of each constant that matters, what was found, and the truth in us."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    landscape = DEVICES[source](seed)
    true, counts = truth(landscape), dict(zip(SUMS, landscape.links, strict=True))
    result = {}
    for each in found(learned_on(landscape, trials, seed).posterior()):
        if abs(true[each.name]) * counts[each.name] > MATTERS * 1e3 * landscape.baseline_ms:
            true_us = true[each.name]
            result[each.name] = abs(each.us - true_us) / abs(true_us), each, true_us
    return result


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscape", choices=("known-devices", "known-devices-timed"), default="known-devices")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("fork")) as pool:
        results = list(pool.map(partial(errors, arguments.landscape, arguments.trials), seeds))
    command = f"--landscape {arguments.landscape} --trials {arguments.trials} --first {arguments.first}"
    command += f" --seeds {arguments.seeds}"
    dropped = sum(not each for each in results)
    meaning = (
        f"After {arguments.trials} trials on devices whose law is known ({dropped} of {len(results)} searches had "
        f"dropped the law). A constant matters where it is worth more than {MATTERS:.0%} of the step. Error: of the "
        "mean, relative to the truth; covered: the truth lies within two of the stated standard deviations."
    )
    lines = [
        f"# python benchmarks/device_constants.py {command}",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}; {device_name('cpu')}; Python {platform.python_version()}",
        "",
        meaning,
        "",
        "| constant | devices where it matters | median error | within 25% | covered |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in (*SUMS, ""):
        rows = [row for each in results for found_as, row in each.items() if name in (found_as, "")]
        if rows:
            relative = np.array([error for error, _, _ in rows])
            covered = np.mean([abs(each.us - true_us) < 2 * each.sd_us for _, each, true_us in rows])
            lines.append(
                f"| {name or 'all'} | {len(rows)} | {np.median(relative):.1%} | {(relative < 0.25).mean():.0%} "
                f"| {covered:.0%} |"
            )
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.output:
        arguments.output.write_text(text)


if __name__ == "__main__":
    main()
