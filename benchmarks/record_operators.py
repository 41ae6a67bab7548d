"""Records the operators of one decode step of eight architectures, as TorchAir converts them.

    .venv-npu/bin/python -m benchmarks.record_operators benchmarks/data/operators.json

``landscapes/devices.py`` uses them. The models are small; what is kept does not depend on their size: the units of each
kind of layer, and the types and cores of their operators, in execution order. Operators between two units have no unit.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from sktune.backends.npu.backend import NpuBackend
from sktune.core.layout import OUTSIDE, Kernel, Layout
from sktune.core.space import SpaceSpec
from sktune.targets.base import decode_inputs
from sktune.targets.loading import load
from sktune.targets.presets import load_preset
from sktune.targets.tracing import trace_layout
from tests.torchair.conformance_models import CONFIGURATIONS, MODELS, spec_of


def recorded(model: str, folder: Path) -> dict[str, Any]:
    """Return the operators of a model: before the layers, of each kind of layer, and after."""
    spec, wanted = spec_of(model, folder)
    target = load(spec, takes_torchair=True)
    options = load_preset("deepseek-v3").space.options if model in CONFIGURATIONS else wanted.options
    layout = trace_layout(target, SpaceSpec(options=options))
    backend = NpuBackend(target, layout, decode_inputs(target, 0, 1)[0])
    return {"model": model, "parts": parts(backend.kernels(), layout)}


def parts(kernels: Sequence[tuple[str | None, Kernel]], layout: Layout) -> list[dict[str, Any]]:
    """Return the step's parts in order, equal layers once: their name and operators as unit, type and core."""
    units = {unit.name: unit for unit in layout.units}
    found: dict[str, list[list[str]]] = {}
    part = OUTSIDE
    for name, kernel in kernels:
        unit = units.get(name or "")
        if unit is not None:
            if unit.layer is not None:
                part = f"{layout.layers[unit.layer].kind} {unit.layer}"
            elif part != OUTSIDE:
                part = f"{OUTSIDE} end"
        found.setdefault(part, []).append([unit.key if unit else "", kernel.type, kernel.core])
    kinds: dict[str, list[list[str]]] = {}
    for name, inside in found.items():
        kinds.setdefault(name if name.startswith(OUTSIDE) else name.split()[0], inside)
    return [{"part": name, "operators": each} for name, each in kinds.items()]


def main() -> None:
    """Write the operators of all models."""
    target = Path(sys.argv[1]).resolve()
    torch.set_grad_enabled(False)
    models = []
    for model in (*MODELS, "deepseek_v3"):
        folder = Path(mkdtemp())
        os.chdir(folder)
        models.append(recorded(model, folder))
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in models)
    target.write_text(f'{{"source": "TorchAir of torch_npu 2.13.0", "models": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
