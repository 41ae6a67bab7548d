"""``sktune calibrate`` as functions: fit the constants to profiles, or to what a study has found, and write them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from sktune.backends import backend_info
from sktune.core.errors import SimulationError
from sktune.core.events.commands import Fitted
from sktune.core.files import write_text
from sktune.learning.device import constants_us
from sktune.learning.history import Learned
from sktune.learning.law import PRIOR_US
from sktune.learning.threads import one_blas_thread
from sktune.profiling.analysis import analyse
from sktune.profiling.readers.reading import read_profile
from sktune.sim.calibration import Calibration, calibrate
from sktune.sim.constants import ATLAS_A3, Constant, Constants, load_constants
from sktune.sim.deployment import deploy
from sktune.sim.launch import task_us
from sktune.sim.operators import Operator
from sktune.sim.trace import trace_operators
from sktune.study.result import SearchResult
from sktune.study.stored_space import space_of
from sktune.targets.loading import load
from sktune.targets.tracing import trace_layout
from sktune.tuning.request import Request, space_spec

TASK = ("dispatch_gap_us", "head_us", "head_per_aiv_us", "head_per_aic_us")
"""The constants that the law's ``task_us`` stands for."""


def calibrate_to(profiles: Sequence[Path], start: Path | None, request: Request | None, out: Path) -> Calibration:
    """Fit the simulated device's constants to ``profiles`` and write them to ``out``.

    Args:
        start: initial constants; None for those that come with sktune.
        request: names the model that was profiled; without it heads and efficiencies keep their values.

    Raises:
        SktuneError: a profile cannot be read, nothing can be fitted, or the file cannot be written.
    """
    constants = load_constants(start or ATLAS_A3)
    frames = [analyse(read_profile(path)).certain(path).kernels for path in profiles]
    operators: tuple[Operator, ...] = ()
    if request is not None:
        spec, preset = request.target()
        with torch.no_grad():
            target = load(spec, takes_torchair=backend_info(spec.backend).takes_torchair(spec.device))
            operators = trace_operators(target, trace_layout(target, space_spec(request, spec, preset)), constants)
        if spec.device == "meta":
            operators = deploy(operators, constants)
    fitted = calibrate(frames, constants, operators)
    _write(fitted, out)
    return fitted


@one_blas_thread()
def calibrate_to_study(result: SearchResult, start: Path | None, out: Path) -> Calibration:
    """Take over what a study has found its device to be, and write it to ``out``.

    Args:
        result: of the study.
        start: initial constants; None for those that come with sktune.
        out: the file to write.

    Raises:
        SktuneError: the study has found nothing about its device, or the file cannot be written.
    """
    constants = load_constants(start or ATLAS_A3)
    space = space_of(result.facts, result.history)
    values: Mapping[str, tuple[float, float]] = {}
    if space is not None:
        learned = Learned(space)
        learned.read_once(result.history)
        values = constants_us(learned.posterior()) if learned.model.count else {}
    if not values:
        raise SimulationError(
            f"study {result.study!r} has not found what its device is: its operators are unknown, its figures do not "
            "follow the law of SuperKernels, or are too few; see `sktune show --why`, or give profiles"
        )
    fitted = Calibration(constants.with_constants(_constants(values, constants, result.study)),
                         tuple(_rows(values, constants)))  # fmt: skip
    _write(fitted, out)
    return fitted


def _rows(values: Mapping[str, tuple[float, float]], constants: Constants) -> Iterator[Fitted]:
    for name in PRIOR_US:
        of_name = TASK if name == "task_us" else (name,)
        for each in of_name:
            before = constants[each]
            if name not in values:
                yield Fitted(each, "us", before, note="the study does not determine it")
                continue
            mean_us, sd_us = values[name]
            share = before / task_us(constants) if name == "task_us" else 1.0
            note = "its share of gap and head as before" if len(of_name) > 1 else "from the study's trials"
            yield Fitted(each, "us", before, mean_us * share, sd_us * share, note)


def _constants(values: Mapping[str, tuple[float, float]], constants: Constants, study: str) -> dict[str, Constant]:
    return {
        row.name: Constant(value=row.after, unit=row.unit, fitted=True, reason=f"study {study}: {row.note}",
                           standard_error=row.standard_error)
        for row in _rows(values, constants) if row.after is not None
    }  # fmt: skip


def _write(fitted: Calibration, out: Path) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, fitted.constants.to_yaml())
    except OSError as failure:
        raise SimulationError(
            f"{out} cannot be written ({failure.strerror}); name another file with --out"
        ) from failure
