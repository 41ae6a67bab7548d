"""Test projects with the layout of cann-recipes-infer."""

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from sktune.targets.base import Inputs, Target

ROOT = Path(__file__).parent.parent.parent
N_LAYERS = 3


@dataclass(frozen=True)
class ModelProject:
    """A project with one model.

    Attributes:
        root: folder of the project, which contains ``executor/``.
        model: the model's folder, relative to the root.
        source: the model's file, relative to the root.
        class_name: the model's class.
        layers: the number of its layers.
    """

    root: Path
    model: Path
    source: Path
    class_name: str
    layers: int

    def target(self, copy: Path, *, scopes: bool = False) -> Target:
        """Return the target for the model in a copy of the project, with the model's own scopes on or off."""
        model = self._model(copy, scopes).eval().requires_grad_(False)
        state = dict(model.named_buffers())

        def prefill(seed: int, steps: int) -> Sequence[Inputs]:
            for tensor in state.values():
                tensor.zero_()
            tokens = torch.randint(0, 64, (2, steps), generator=torch.Generator().manual_seed(seed))
            return [self._inputs(tokens, step) for step in range(steps)]

        return Target(model, model.forward, prefill, state, f"{self.class_name}: {self.layers} layers")

    def _model(self, copy: Path, scopes: bool) -> Any:
        sys.path.insert(0, str(copy))
        try:
            spec = importlib.util.spec_from_file_location(f"{self.source.stem}_{abs(hash(copy))}", copy / self.source)
            assert spec and spec.loader
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(copy))
        torch.manual_seed(0)
        return getattr(module, self.class_name)(self._config(scopes))

    def _config(self, scopes: bool) -> Any:
        return SimpleNamespace(enable_superkernel=scopes, batch_size=2, num_hidden_layers=self.layers)

    def _inputs(self, tokens: torch.Tensor, step: int) -> Inputs:
        return (tokens[:, step : step + 1],)


class RanksProject(ModelProject):
    """The project with several ranks, run with one rank."""

    def _config(self, scopes: bool) -> Any:
        return {
            "model_config": {"custom_params": {"enable_superkernel": scopes}},
            "parallel_config": {"world_size": 1, "attn_tp_size": 1},
            "scheduler_config": {"batch_size": 2},
        }

    def _inputs(self, tokens: torch.Tensor, step: int) -> Inputs:
        return tokens[:, step : step + 1], torch.tensor([step])


def _project(kind: type[ModelProject], root: str, model: str, class_name: str, layers: int) -> ModelProject:
    folder = Path("models") / model
    return kind(Path(__file__).parent / root, folder, folder / "models" / f"modeling_{model}.py", class_name, layers)


TEMPLATE = _project(ModelProject, "template", "tiny", "TinyForCausalLM", N_LAYERS)
"""One model, whose layers are like those in the skill's attention-only template."""
RANKS = _project(RanksProject, "ranks", "tiny_moe", "TinyMoeForCausalLM", 2)
"""A program with two ranks over gloo and hand-written tensor parallelism, started by ``infer.sh``."""


def long_gaps(folder: Path) -> Path:
    """Return a file with constants of a simulated device on which the scopes of a tiny model save time."""
    from benchmarks.landscapes.simulated import LONG_GAPS_US  # not where only a project is loaded
    from benchmarks.real_pairs import set_values
    from sktune.sim.constants import load_constants

    path = folder / "long-gaps.yaml"
    path.write_text(set_values(load_constants(), LONG_GAPS_US).to_yaml())
    return path


def as_model(project: Path, folder: Path) -> tuple[str, Path]:
    """Return ``--model`` and ``--space`` for the model in ``project``, for plans that its source can express."""
    source = folder / "own.py"
    source.write_text(
        f"import sys\nfrom pathlib import Path\n\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"from tests.projects import TEMPLATE\n\n\ndef target():\n    return TEMPLATE.target(Path({str(project)!r}))\n"
    )
    space = folder / "space.yaml"
    space.write_text(
        "version: 1\nspace:\n  units: [self_attn, mlp]\n  step_units: []\n  layers_per_scope: [1]\n"
        "  options: {npu: {npu: {stream-fusion: [0, 1], split-mode: [2, 4, 8, 16], preload-code: [per-func, max, none]}}}\n"
    )
    return f"{source}:target", space
