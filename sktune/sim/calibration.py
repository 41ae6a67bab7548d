"""``sktune calibrate`` as functions: fit the cost model's constants to profiles, or take over what a study has found.

Linear least squares throughout. A constant that the profiles do not determine keeps its value, and the result says why:

* ``dispatch_gap_us`` is the mean wait before a task; if the profiles say on which cores tasks run, ``gap_into_mix_us``
  and ``gap_out_of_mix_us`` are how much longer it is before and after MIX tasks.
* ``head_us``, ``busy_floor_us`` and the efficiencies follow from the baseline's durations and from the operations and
  bytes of each task in a traced step.
* barriers follow from SuperKernels: their durations minus those of the same operators in the baseline. A border has
  exactly one barrier, so these constants also absorb any error in early start and instruction cache.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from sktune.ascend.kernel_name import SUPERKERNEL
from sktune.ascend.superkernel_parts import Refusal
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
from sktune.sim.constants import ATLAS_A3, Constant, Constants, load_constants
from sktune.sim.deployment import deploy
from sktune.sim.launch import first_use_us, head_us, task_us, with_first_uses
from sktune.sim.operators import Operator, from_kernel_table, in_steps, tasks_of, typical_step
from sktune.sim.superkernel import barrier_weights, busy_us, fuse, generated, roofline_us
from sktune.sim.trace import trace_operators
from sktune.study.result import SearchResult
from sktune.study.stored_space import space_of
from sktune.targets.loading import load
from sktune.targets.tracing import trace_layout
from sktune.tuning.request import Request, space_spec

MIN_ROWS = 8
"""Observations below which a constant is not fitted."""
MIN_SPREAD = 0.5
"""Least spread of usual waits, relative to their third quartile: equal waits make a slightly longer one no outlier."""
_GAPS = ("dispatch_gap_us", "gap_into_mix_us", "gap_out_of_mix_us")
_BARRIERS = ("barrier_vector_us", "barrier_cube_us", "barrier_mix_us", "signal_us")
_BUSY = ("head_us", "busy_floor_us", "cube_efficiency", "hbm_efficiency")

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The calibrated constants, and the result for each one."""

    constants: Constants
    fitted: tuple[Fitted, ...]

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return name and unit, before, after, standard error and note of each constant, as text."""
        return [
            (
                row.name if row.unit == "1" else f"{row.name} ({row.unit})",
                f"{row.before:.3g}",
                "kept" if row.after is None else f"{row.after:.3g}",
                "-" if row.standard_error is None else f"{row.standard_error:.2g}",
                row.note,
            )
            for row in self.fitted
        ]


def calibrate(frames: Sequence[pd.DataFrame], constants: Constants, operators: Sequence[Operator] = ()) -> Calibration:
    """Fit the constants to profiles of one model on one device.

    Args:
        frames: kernel tables (``TABLE_COLUMNS``). Those without SuperKernels are baselines; the others must be of
            scopes without options.
        constants: the initial values; constants that cannot be fitted keep them.
        operators: the traced or converted step, for head and efficiencies; its tasks are those of the baseline.

    Raises:
        SimulationError: no profile, a malformed one, or profiles to which nothing can be fitted.
    """
    if not frames:
        raise SimulationError("there is no profile to fit; give at least one of the baseline")
    frames = [in_steps(frame) for frame in frames]
    baselines = [frame for frame in frames if not (frame["type"] == SUPERKERNEL).any()]
    candidates = [frame for frame in frames if (frame["type"] == SUPERKERNEL).any()]
    rows = _fit_gaps(frames, constants)
    rows += _fit_busy(baselines, operators, constants)
    rows += _fit_barriers(baselines, candidates, _applied(constants, rows))
    if all(row.after is None for row in rows):
        raise SimulationError(f"nothing can be fitted to these profiles: {rows[0].note}")
    return Calibration(_applied(constants, rows), tuple(rows))


def _applied(constants: Constants, rows: Sequence[Fitted]) -> Constants:
    fitted = {
        row.name: Constant(
            value=row.after, unit=row.unit, fitted=True, reason=row.note, standard_error=row.standard_error
        )
        for row in rows
        if row.after is not None
    }
    return constants.with_constants(fitted)


def _kept(name: str, constants: Constants, note: str) -> Fitted:
    return Fitted(name, constants.constants[name].unit, constants[name], note=note)


def _row(
    name: str, values: Mapping[str, tuple[float, float]], note: str, constants: Constants, unknown: str, refused: str
) -> Fitted:
    """Return a constant's new value, or that it is kept: ``unknown`` if none is fitted, ``refused`` if none can be."""
    if name not in values:
        return _kept(name, constants, unknown)
    value, error = values[name]
    if value < 0 or (name in _BUSY and not value):
        return _kept(name, constants, refused)
    if name.endswith("_efficiency"):  # the fit is that of the inverse
        value, error = 1 / value, error / value**2
    return Fitted(name, constants.constants[name].unit, constants[name], value, error, note)


def _fit_gaps(frames: Sequence[pd.DataFrame], constants: Constants) -> list[Fitted]:
    """Fit ``wait = gap + into MIX + out of MIX``, each where it applies."""
    borders: dict[tuple[bool, bool], list[float]] = {}
    for border, wait in (each for frame in frames for each in _waits(frame, constants)):
        borders.setdefault(border, []).append(wait)
    count = sum(map(len, borders.values()))
    if count < MIN_ROWS:
        note = f"{count} waits between tasks of one stream, {MIN_ROWS} are needed"
        return [_kept(name, constants, note) for name in _GAPS]
    usual = {}
    for border, each in borders.items():  # without the waits for a slow host, which are not for dispatch
        low, high = np.quantile(each, [0.25, 0.75])
        usual[border] = [wait for wait in each if wait <= high + 3 * max(high - low, MIN_SPREAD * high)]
    rows = [((1.0, float(is_mix), float(was_mix)), wait) for (was_mix, is_mix), each in usual.items() for wait in each]
    design, waits = np.array([row for row, _ in rows]), np.array([wait for _, wait in rows])
    counts = np.count_nonzero(design, axis=0)
    enough = np.flatnonzero(counts >= MIN_ROWS).tolist()
    values = _fit_where_alone(design, waits, enough) or _fit_where_alone(design, waits, enough[:1])
    fitted = []
    places = ("before a task", "before a MIX task", "after a MIX task")
    for name, where, count in zip(_GAPS, places, counts.tolist(), strict=True):
        if count < MIN_ROWS:
            fitted.append(_kept(name, constants, f"{count} waits {where}, {MIN_ROWS} are needed"))
            continue
        note = f"{'mean of ' if len(values) == 1 else ''}{count} waits {where}"
        unknown = "the tasks' cores are too similar to separate it from the others"
        fitted.append(_row(name, values, note, constants, unknown, f"waits {where} are not longer than others"))
    return fitted


def _fit_where_alone(design: Matrix, waits: Matrix, columns: Sequence[int]) -> dict[str, tuple[float, float]]:
    """Return the gaps of ``columns``, from the waits that depend on no other; empty if they do not determine them."""
    others = np.delete(design, columns, axis=1).any(axis=1)
    fit = _least_squares(design[~others][:, columns], waits[~others])
    if fit is None:
        return {}
    return {_GAPS[at]: (float(value), float(error)) for at, value, error in zip(columns, *fit, strict=True)}


def _waits(frame: pd.DataFrame, constants: Constants) -> Iterator[tuple[tuple[bool, bool], float]]:
    """Yield the waits before tasks that follow another one on their stream and do not wait for other streams.

    Each comes with its border: whether the tasks before and after it use cube and vector cores together. Dispatch into
    and out of such a task takes about 1 us, between others 0.02 us (op_summary of hicann/cann-learning-hub, A2).
    """
    for _, step in frame.groupby(["device", "step"]):
        mixed: dict[int, bool] = {}
        for task in tasks_of(step.sort_values("start_us"), constants):
            is_mix = task.core == "mix"
            if task.stream in mixed and task.wait_us is not None:
                yield (mixed[task.stream], is_mix), task.wait_us
            mixed[task.stream] = is_mix


def _fit_busy(baselines: Sequence[pd.DataFrame], operators: Sequence[Operator], constants: Constants) -> list[Fitted]:
    """Fit ``duration = head + floor`` for small tasks, ``head + ideal / efficiency`` for those bound by a rate."""
    if not baselines or not operators:
        missing = "no profile without SuperKernels" if operators else "needs a traced step"
        return [_kept(name, constants, missing) for name in _BUSY]
    step = typical_step(baselines[0])
    if list(step["type"]) != [operator.type for operator in operators]:
        note = f"the baseline's {len(step)} tasks differ in type or order from the traced step's {len(operators)}"
        return [_kept(name, constants, note) for name in _BUSY]
    steps = (
        each for frame in baselines for _, each in frame.groupby(["device", "step"]) if len(each) == len(operators)
    )
    whole = [each.sort_values("start_us")["duration_us"].to_numpy(dtype=np.float64) for each in steps]
    durations = np.concatenate(whole)  # those of the typical step at least
    repeats = len(durations) // len(operators)
    operators = with_first_uses(operators)
    columns = _busy_columns(operators, constants)
    kinds = [name for name in _BUSY if repeats * np.count_nonzero(columns[name]) >= MIN_ROWS]
    # Tasks that depend on no fitted constant keep the model's time: vector arithmetic, collectives.
    depends = np.any([columns[name] != 0 for name in kinds if name != "head_us"], axis=0)
    rest = np.where(depends, 0.0, [busy_us(operator, constants) for operator in operators])
    # Of a head, only the part that does not depend on the number of blocks is fitted.
    rest += [head_us(op, constants) - constants["head_us"] + first_use_us(op, constants) for op in operators]
    design = np.stack([columns[name] for name in kinds], axis=1)
    fit = _least_squares(np.tile(design, (repeats, 1)), durations - np.tile(rest, repeats))
    if fit is None:
        return [_kept(name, constants, "the tasks are too similar to separate it from the others") for name in _BUSY]
    values = {name: (value, error) for name, value, error in zip(kinds, *fit, strict=True)}
    note = f"{len(durations)} durations of the baseline"
    unknown = f"fewer than {MIN_ROWS} tasks are bound by it"
    refused = "the fit is not above zero: something else limits these tasks"
    return [_row(name, values, note, constants, unknown, refused) for name in _BUSY]


def _busy_columns(operators: Sequence[Operator], constants: Constants) -> dict[str, Matrix]:
    """Return each constant's coefficients in the tasks' durations; for efficiencies, those of the inverse."""
    rows = []
    for operator in operators:
        computing, moving = roofline_us(operator, constants)
        is_modelled = operator.duration_us is None
        is_floor = is_modelled and max(computing, moving) < constants["busy_floor_us"]
        is_cube = is_modelled and not is_floor and computing > moving and operator.core in ("cube", "mix")
        is_moving = is_modelled and not is_floor and moving >= computing
        cube, hbm = computing * constants["cube_efficiency"], moving * constants["hbm_efficiency"]
        rows.append((1.0, float(is_floor), cube if is_cube else 0.0, hbm if is_moving else 0.0))
    return dict(zip(_BUSY, np.array(rows).T, strict=True))


def _fit_barriers(
    baselines: Sequence[pd.DataFrame], candidates: Sequence[pd.DataFrame], constants: Constants
) -> list[Fitted]:
    """Fit barriers to the part of SuperKernels' durations that operators and other constants do not explain."""
    if not baselines or not candidates:
        note = "no profile without SuperKernels" if candidates else "no SuperKernel in the profiles"
        return [_kept(name, constants, note) for name in _BARRIERS]
    means = pd.concat(baselines).groupby("name")["duration_us"].mean()
    typical = from_kernel_table(baselines[0], constants)
    measured = [replace(operator, duration_us=float(means[operator.name])) for operator in typical]
    operators = with_first_uses(measured)
    observed = [row for frame in candidates for row in _barrier_rows(frame, operators, constants)]
    if len(observed) < MIN_ROWS:
        note = f"{len(observed)} SuperKernels consist of operators of the baseline, {MIN_ROWS} are needed"
        return [_kept(name, constants, note) for name in _BARRIERS]
    design = np.array([row[:-1] for row in observed])
    target = np.array([row[-1] for row in observed])
    used = [index for index in range(len(_BARRIERS)) if np.count_nonzero(design[:, index]) >= MIN_ROWS]
    fit = _least_squares(design[:, used], target)
    if fit is None:
        return [
            _kept(name, constants, "the SuperKernels are too similar to separate the barriers") for name in _BARRIERS
        ]
    values = {_BARRIERS[index]: (value, error) for index, value, error in zip(used, *fit, strict=True)}
    note = f"{len(observed)} SuperKernels compared with the baseline"
    unknown = f"fewer than {MIN_ROWS} SuperKernels have such a border"
    refused = "the fit is below zero: head_us, early start or instruction cache are wrong"
    return [_row(name, values, note, constants, unknown, refused) for name in _BARRIERS]


def _barrier_rows(
    frame: pd.DataFrame, operators: Sequence[Operator], constants: Constants
) -> Iterator[tuple[float, ...]]:
    """Yield for each SuperKernel its barriers' weights, and the time to explain by them."""
    place = {operator.name: index for index, operator in enumerate(operators)}
    # Samples of one SuperKernel share the baseline's error: their mean is one observation.
    durations = frame[frame["type"] == SUPERKERNEL].groupby("name")["duration_us"].mean()
    for name, duration_us in durations.items():
        members = _members(str(name), place, operators)
        if len(members) > 1 and len({operator.stream for operator in members}) == 1:
            code = generated(members, {}, constants)
            if isinstance(code, Refusal):
                continue
            weights = barrier_weights(code, constants)
            known = fuse(members, {}, constants)
            fixed = known.duration_us - sum(weights[name] * constants[name] for name in _BARRIERS)
            yield (*(weights[name] for name in _BARRIERS), float(duration_us) - fixed)


def _members(name: str, place: Mapping[str, int], operators: Sequence[Operator]) -> Sequence[Operator]:
    """Return the operators from first to last of ``sk_<scope>_start_<first>_end_<last>``."""
    pieces = name.split("_start_")
    for cut in range(1, len(pieces)):
        ends = "_start_".join(pieces[cut:]).split("_end_")
        for middle in range(1, len(ends)):
            first, last = "_end_".join(ends[:middle]), "_end_".join(ends[middle:])
            if first in place and last in place:
                return operators[place[first] : place[last] + 1]
    return ()


def _least_squares(design: Matrix, target: Matrix) -> tuple[Matrix, Matrix] | None:
    """Return the solution and its standard errors; None if the columns do not determine it."""
    count, unknowns = design.shape
    if not unknowns or count <= unknowns or np.linalg.matrix_rank(design) < unknowns:
        return None
    solution, *_ = np.linalg.lstsq(design, target, rcond=None)
    residual = target - design @ solution
    covariance = np.linalg.inv(design.T @ design) * float(residual @ residual) / (count - unknowns)
    return np.asarray(solution, np.float64), np.asarray(np.sqrt(np.diag(covariance)), np.float64)


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
    rows = tuple(_rows_of_study(values, constants))
    noted = [replace(row, note=f"study {result.study}: {row.note}") for row in rows]
    fitted = Calibration(_applied(constants, noted), rows)
    _write(fitted, out)
    return fitted


def _rows_of_study(values: Mapping[str, tuple[float, float]], constants: Constants) -> Iterator[Fitted]:
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


def _write(fitted: Calibration, out: Path) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, fitted.constants.to_yaml())
    except OSError as failure:
        raise SimulationError(
            f"{out} cannot be written ({failure.strerror}); name another file with --out"
        ) from failure
