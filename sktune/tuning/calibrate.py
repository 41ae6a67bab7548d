"""``sktune calibrate`` as a function: read profiles, trace the model if one is named, fit, and write."""

from collections.abc import Sequence
from pathlib import Path

import torch

from sktune.backends import backend_info
from sktune.backends.sim.calibration import Calibration, calibrate
from sktune.backends.sim.constants import ATLAS_A3, load_constants
from sktune.backends.sim.deployment import deploy
from sktune.backends.sim.operators import Operator
from sktune.backends.sim.trace import trace_operators
from sktune.core.errors import SimulationError
from sktune.core.files import write_text
from sktune.profiling.analysis import analyse
from sktune.profiling.readers.reading import read_profile
from sktune.targets.loading import load
from sktune.targets.tracing import trace_layout
from sktune.tuning.prepare import space_spec
from sktune.tuning.request import Request


def calibrate_to(profiles: Sequence[Path], start: Path | None, request: Request | None, out: Path) -> Calibration:
    """Fit the simulated device's constants to ``profiles`` and write them to ``out``.

    Args:
        start: initial constants; None for those that come with sktune.
        request: names the model that was profiled; without it heads and efficiencies keep their values.

    Raises:
        SktuneError: a profile cannot be read, nothing can be fitted, or the file cannot be written.
    """
    constants = load_constants(start or ATLAS_A3)
    frames = [analyse(read_profile(path)).kernels for path in profiles]
    operators: tuple[Operator, ...] = ()
    if request is not None:
        spec, preset = request.target()
        with torch.no_grad():
            target = load(spec, takes_torchair=backend_info(spec.backend).takes_torchair(spec.device))
            operators = trace_operators(target, trace_layout(target, space_spec(request, spec, preset)), constants)
        if spec.device == "meta":
            operators = deploy(operators, constants)
    fitted = calibrate(frames, constants, operators)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, fitted.constants.to_yaml())
    except OSError as failure:
        raise SimulationError(
            f"{out} cannot be written ({failure.strerror}); name another file with --out"
        ) from failure
    return fitted
