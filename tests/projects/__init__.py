"""Projects in the layout of cann-recipes-infer, written for the tests."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from sktune.targets.base import Target

ROOT = Path(__file__).parent.parent.parent
TEMPLATE = Path(__file__).parent / "template"
"""One model whose layers have the form of the skill's attention-only template."""
MODEL = Path("models") / "tiny"
N_LAYERS = 3


def target_of(project: Path, *, scopes: bool = False) -> Target:
    """Return the decode step of the model in a copy of ``TEMPLATE``, its own scopes switched on or off."""
    source = project / MODEL / "models" / "modeling_tiny.py"
    sys.path.insert(0, str(project))
    try:
        spec = importlib.util.spec_from_file_location(f"modeling_tiny_{abs(hash(project))}", source)
        assert spec and spec.loader
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(project))
    torch.manual_seed(0)
    config = SimpleNamespace(enable_superkernel=scopes, batch_size=2, num_hidden_layers=N_LAYERS)
    model: Any = module.TinyForCausalLM(config).eval().requires_grad_(False)
    state = dict(model.named_buffers())

    def prefill(seed: int, steps: int) -> list[tuple[torch.Tensor]]:
        for tensor in state.values():
            tensor.zero_()
        tokens = torch.randint(0, 64, (2, steps), generator=torch.Generator().manual_seed(seed))
        return [(tokens[:, step : step + 1],) for step in range(steps)]

    return Target(model, model.forward, prefill, state, "tiny: 3 layers")


def as_model(project: Path, folder: Path) -> tuple[str, Path]:
    """Return what ``--model`` and ``--space`` take for the model in ``project``: plans that its source can say."""
    source = folder / "own.py"
    source.write_text(
        f"import sys\nfrom pathlib import Path\n\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"from tests.projects import target_of\n\n\ndef target():\n    return target_of(Path({str(project)!r}))\n"
    )
    space = folder / "space.yaml"
    space.write_text(
        "version: 1\nspace:\n  units: [self_attn, mlp]\n  step_units: []\n  layers_per_scope: [1]\n"
        "  options: {npu: {npu: {stream-fusion: [0, 1], split-mode: [2, 4, 8, 16], preload-code: [per-func, max, none]}}}\n"
    )
    return f"{source}:target", space
