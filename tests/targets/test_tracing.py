"""Layouts come from a traced step, which shows order, layers and kinds."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sktune.core.errors import PlanError, SpaceError, TargetError
from sktune.core.layout import Layout
from sktune.core.plan import Plan, Scope
from sktune.core.space import SpaceSpec
from sktune.targets import TargetSpec, describe
from sktune.targets.base import Target
from sktune.targets.loading import load
from sktune.targets.tracing import TIMED_STEPS, trace_layout
from tests.builders import one_line_error


@pytest.fixture(scope="module")
def deepseek() -> Target:
    """Return the tiny DeepSeek-V3."""
    spec, _ = describe("deepseek-v3")
    return load(spec)


def names(layout: Layout) -> list[str]:
    """Return the units' names without their common prefix."""
    return [unit.name.removeprefix("model.") for unit in layout.units]


class _LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that an operator returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        tensors = (leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))
        self.elements = max([self.elements, *(tensor.numel() for tensor in tensors)])
        return output


def test_a_long_context_copies_no_experts_for_each_token() -> None:
    """At scale ``small``, the default on CUDA, this once took 512 GiB."""
    spec, _ = describe("deepseek-v3", context=256)
    target = load(spec)
    with _LargestTensor() as largest:  # type: ignore[no-untyped-call]
        target.prefill(0, 1)
    largest_parameter = max(parameter.numel() for parameter in target.module.parameters())
    assert largest.elements <= largest_parameter


def test_deepseek_has_dense_and_moe_layers_in_execution_order(deepseek: Target) -> None:
    """One dense and three MoE layers, between embedding and head."""
    layout = trace_layout(deepseek, SpaceSpec())
    children = ["input_layernorm", "self_attn", "post_attention_layernorm", "mlp"]
    inside = [f"layers.{index}.{child}" for index in range(4) for child in children]
    assert names(layout) == ["embed_tokens", "rotary_emb", *inside, "norm", "lm_head"]
    assert [layer.kind for layer in layout.layers] == ["dense", "moe", "moe", "moe"]
    assert layout.kinds == {"dense": tuple(children), "moe": tuple(children)}
    assert all(unit.time_share > 0 for unit in layout.units)
    assert sum(unit.time_share for unit in layout.units) <= 1.05


def test_deeper_units_keep_the_order_in_which_they_run(deepseek: Target) -> None:
    """Router, experts, shared experts, whatever the order of the list."""
    wanted = {"dense": ["self_attn", "mlp"], "moe": ["mlp.shared_experts", "mlp.experts", "mlp.gate", "self_attn"]}
    layout = trace_layout(deepseek, SpaceSpec(units=wanted))
    assert layout.kinds["moe"] == ("self_attn", "mlp.gate", "mlp.experts", "mlp.shared_experts")
    assert layout.kinds["dense"] == ("self_attn", "mlp")


def test_a_plain_list_of_units_serves_all_kinds(deepseek: Target) -> None:
    """Kinds with the inner units use these, other kinds the outer one."""
    layout = trace_layout(deepseek, SpaceSpec(units=["self_attn", "mlp", "mlp.gate", "mlp.experts"]))
    assert layout.kinds == {"dense": ("self_attn", "mlp"), "moe": ("self_attn", "mlp.gate", "mlp.experts")}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"units": ["self_atn"]}, r"unit 'self_atn', which does not run in a dense layer; did you mean 'self_attn'"),
        ({"units": {"mo": ["mlp"]}}, "layer kind 'mo', which the model lacks; did you mean 'moe'"),
        ({"step_units": ["embed"]}, "step unit 'embed', which the model lacks"),
    ],
)
def test_units_that_the_model_lacks_are_refused(deepseek: Target, spec: dict[str, Any], message: str) -> None:
    """The message has the nearest name."""
    with pytest.raises(SpaceError, match=message):
        trace_layout(deepseek, SpaceSpec(**spec))


def test_the_trace_leaves_the_state_as_it_was(deepseek: Target) -> None:
    """Although it runs steps."""
    deepseek.prefill(0, 1)
    before = {name: tensor.clone() for name, tensor in deepseek.state.items()}
    trace_layout(deepseek, SpaceSpec())
    assert all(torch.equal(before[name], tensor) for name, tensor in deepseek.state.items())


class Twice(nn.Module):
    """Calls one child twice, so a scope boundary there would be ambiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.once, self.twice = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (.., 4) to the same shape."""
        out: torch.Tensor = self.twice(self.once(self.twice(x)))
        return out


def simple(module: nn.Module, fails: bool = False) -> Target:
    """Return a target over a module that maps (1, 4) to (1, 4)."""

    def step(x: torch.Tensor) -> torch.Tensor:
        if fails:
            raise ValueError("no such thing\nand more")
        out: torch.Tensor = module(x)
        return out

    return Target(module, step, lambda seed, steps: [(torch.ones(1, 4),)] * steps)


def test_a_module_that_runs_twice_is_not_a_unit() -> None:
    """It belongs to every scope around it."""
    assert names(trace_layout(simple(Twice()), SpaceSpec())) == ["once"]


class Sleepy(nn.Linear):
    """A module of which some calls take long."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        super().__init__(4, 4)
        self.calls, self._seconds = 0, seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (.., 4) to the same shape."""
        self.calls += 1
        time.sleep(self._seconds(self.calls))
        return super().forward(x)


@pytest.fixture
def all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time as many steps as users do."""
    monkeypatch.setattr("sktune.targets.tracing.TIMED_STEPS", TIMED_STEPS)


def shares_of(*modules: nn.Module) -> list[float]:
    """Return the time shares of modules that run one after the other."""
    return [unit.time_share for unit in trace_layout(simple(nn.Sequential(*modules)), SpaceSpec()).units]


@pytest.mark.usefixtures("all_steps")
def test_shares_are_those_of_a_warm_step() -> None:
    """What a module does in its first calls, such as loading a kernel, is in no share."""
    one, other = shares_of(Sleepy(lambda call: 0.3 if call <= 6 else 0.02), Sleepy(lambda call: 0.02))
    assert 0.1 < one < 0.9
    assert one + other > 0.5


def sleepy_in_turn(turn: int) -> Sleepy:
    """Return a module that takes ten times as long in every third step."""
    return Sleepy(lambda call: 0.1 if call % 3 == turn else 0.01)


@pytest.mark.usefixtures("all_steps")
def test_shares_survive_load_that_hits_every_step_elsewhere() -> None:
    """The modules still make up the step."""
    assert sum(shares_of(*map(sleepy_in_turn, range(3)))) > 0.7


@pytest.mark.usefixtures("all_steps")
def test_a_slow_model_is_not_run_nine_times_for_its_shares() -> None:
    """Once to record its calls, and for about two seconds to time them."""
    slow, quick = Sleepy(lambda call: 1.1), nn.Linear(4, 4)
    assert shares_of(slow, quick)[0] > 0.9
    assert 2 <= slow.calls <= 3


class Contained(nn.Module):
    """A layer with a container that does not run itself, and a list from which each step may call another member."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Linear(4, 4)
        self.parts = nn.ModuleDict({"up": nn.Linear(4, 4), "down": nn.Linear(4, 4)})
        self.choices = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (.., 4) to the same shape."""
        out: torch.Tensor = self.choices[1](self.parts["down"](self.parts["up"](self.norm(x))))
        return out


def test_members_of_a_container_that_does_not_run_are_units() -> None:
    """Members of a list are not: the next step may run other experts."""
    layout = trace_layout(simple(nn.Sequential(Contained(), Contained())), SpaceSpec())
    assert layout.kinds == {"dense": ("norm", "parts.up", "parts.down")}


def test_modules_that_all_run_twice_are_named() -> None:
    """One layer that is registered and called three times."""
    layer = nn.Linear(4, 4)
    with pytest.raises(TargetError, match=r"every submodule runs more than once.*\(0 3 times\)"):
        trace_layout(simple(nn.Sequential(layer, layer, layer)), SpaceSpec())


@pytest.mark.parametrize("output", [None, 3, {"logits": None}])
def test_a_step_without_a_tensor_to_compare_is_refused(output: Any) -> None:
    """Otherwise every plan would be bit-identical."""
    sound = simple(Twice())
    with pytest.raises(TargetError, match="returns no tensor to compare"):
        trace_layout(replace(sound, decode_step=lambda x: (sound.decode_step(x), output)[1]), SpaceSpec())


def test_a_prefill_that_fails_or_returns_too_little_gets_one_line() -> None:
    """It says which function to fix."""

    def fails(seed: int, steps: int) -> list[tuple[torch.Tensor]]:
        raise ValueError(f"no seed {seed}\nat all")

    with one_line_error(TargetError, "the prefill fails: ValueError: no seed 0; fix"):
        trace_layout(replace(simple(Twice()), prefill=fails), SpaceSpec())
    with pytest.raises(TargetError, match="inputs of 0 steps; have it return 1"):
        trace_layout(replace(simple(Twice()), prefill=lambda seed, steps: []), SpaceSpec())


def test_a_step_that_fails_eagerly_gets_one_line() -> None:
    """Before compilation."""
    with one_line_error(TargetError, "the eager decode step fails: ValueError: no such thing; fix"):
        trace_layout(simple(Twice(), fails=True), SpaceSpec())


def test_a_plan_must_fit_the_layout(deepseek: Target) -> None:
    """Unknown units, wrong order and overlaps are refused."""
    layout = trace_layout(deepseek, SpaceSpec())
    attention, mlp = "model.layers.1.self_attn", "model.layers.1.mlp"
    layout.check(Plan((Scope(attention, mlp),)))
    with pytest.raises(PlanError, match=r"no unit 'model.layers.9.mlp'"):
        layout.check(Plan((Scope("model.layers.9.mlp", "model.layers.9.mlp"),)))
    with pytest.raises(PlanError, match="runs backwards"):
        layout.check(Plan((Scope(mlp, attention),)))
    with pytest.raises(PlanError, match="overlaps"):
        layout.check(Plan((Scope("model.layers.0.mlp", mlp), Scope(attention, attention))))


@pytest.mark.parametrize("name", ["llama", "qwen3", "qwen3-moe"])
def test_the_other_presets_load_at_their_smallest_scale(name: str) -> None:
    """Their descriptions say in one line what is tuned."""
    spec, preset = describe(name)
    assert preset is not None
    target = load(spec)
    total = preset.model.published["num_hidden_layers"]
    assert target.description.startswith(f"{name}, tiny: 4 of {total} layers, hidden 256, bf16, random weights, seed 0")
    kinds = trace_layout(target, preset.space).kinds
    assert list(kinds) == (["moe"] if name == "qwen3-moe" else ["dense"])


def test_transformers_knows_every_value_of_a_preset() -> None:
    """So nothing in a preset is silently ignored."""
    from transformers import AutoConfig

    for name in ("deepseek-v3", "llama", "qwen3", "qwen3-moe"):
        spec, preset = describe(name)
        assert isinstance(spec, TargetSpec)
        assert preset is not None
        for scale in preset.model.scale_names:
            values = preset.model.configuration(scale)
            config = AutoConfig.for_model(preset.model.model_type, **values)
            reference = AutoConfig.for_model(preset.model.model_type)
            for key in values.keys() - {"head_dim"}:  # transformers reads it if set, but does not declare it
                assert hasattr(reference, key), f"{name}: {key}"
            assert config.num_hidden_layers == values["num_hidden_layers"]


def test_random_weights_follow_from_the_seed() -> None:
    """The same seed gives the same model and inputs, another seed gives others."""

    def embedding(seed: int) -> torch.Tensor:
        spec, _ = describe("llama", seed=seed)
        target = load(spec)
        first = next(iter(target.module.parameters()))
        return torch.cat([first[0].float(), target.prefill(0, 1)[0][0].flatten().float()])

    assert torch.equal(embedding(0), embedding(0))
    assert not torch.equal(embedding(0), embedding(1))


def test_a_checkpoint_and_a_config_folder_are_loaded(tmp_path: Any) -> None:
    """``--weights DIR`` and ``--model DIR`` take Hugging Face folders; pickled weights are refused."""
    target = load(describe("llama", seed=3)[0])
    target.module.save_pretrained(tmp_path / "checkpoint")  # type: ignore[operator]
    loaded = load(describe("llama", weights=tmp_path / "checkpoint")[0])
    assert "weights of checkpoint" in loaded.description
    theirs, ours = dict(target.module.named_parameters()), dict(loaded.module.named_parameters())
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    from_config = load(describe(str(tmp_path / "checkpoint"))[0])
    assert "4 layers, hidden 256" in from_config.description
    torch.save({}, tmp_path / "checkpoint" / "pytorch_model.bin")
    (tmp_path / "checkpoint" / "model.safetensors").unlink()
    with pytest.raises(TargetError, match="cannot be loaded"):
        load(describe("llama", weights=tmp_path / "checkpoint")[0])
