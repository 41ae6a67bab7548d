"""Runs in a process beside ``recipes``: asks a program's own configuration classes, parsers and checks about a YAML.

What is not installed (torch_npu, torchair, custom operators) is replaced by stand-ins that accept everything; so only
what the program itself says counts. Reads requests
of one model as JSON and prints the answers as its last line: what was checked, what is wrong, what was refused.
"""

import importlib
import importlib.util
import inspect
import json
import os
import sys
import tempfile
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import yaml

STAND_INS = (
    "torch_npu", "torchair", "custom_ops", "mindspore", "memfabric_hybrid", "cann_ops_transformer", "einops",
    "datasets", "compressed_tensors", "npugraph_ex", "transformers", "omni_training_custom_ops", "fla_npu", "pypto",
    "ml_dtypes", "paramiko",
)  # fmt: skip
"""Packages of which modules may be missing here."""
REMOVED = (
    ("transformers.utils.import_utils", "is_torch_fx_available"),
    ("transformers.pytorch_utils", "is_torch_greater_or_equal_than_1_13"),
)
"""Names that older programs import, and the transformers here lacks."""
SIZES = {
    "num_hidden_layers": 4, "num_attention_heads": 64, "v_head_dim": 128, "num_experts": 128,
    "num_experts_per_token": 8,
    "linear_attn_config": {"num_heads": 64, "kda_layers": [1, 2, 3], "full_attn_layers": [4]},
}  # fmt: skip
"""Of weights that a checkout lacks, where a program's checks read them."""
_CHECKS = ("check_vars", "_validate_qwen3_5_moe_parallel_support")


class _StandIn(ModuleType):
    """A module in which every name exists."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        stand_in = MagicMock(name=name)
        stand_in.__name__ = name
        return stand_in


class _Finder(MetaPathFinder, Loader):
    """Finds the packages that are missing here."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in STAND_INS else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the names are made when they are looked up."""


def prepare(root: str) -> None:
    """Make the program of the checkout at ``root`` importable without an NPU."""
    sys.meta_path.append(_Finder())
    sys.path[:0] = [root]
    npu = MagicMock()
    npu.get_device_name.return_value = ""
    vars(importlib.import_module("torch"))["npu"] = npu
    for module, name in REMOVED:
        vars(importlib.import_module(module)).setdefault(name, MagicMock(return_value=False))


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """Return what the program says about the YAML of ``request``."""
    values = yaml.safe_load(Path(request["yaml"]).read_text())
    answer: dict[str, Any] = {"wrong": [], "checked": [], "refusals": []}
    os.environ.update(WORLD_SIZE=str(_find(values, "world_size")), LOCAL_RANK="0", RANK_OFFSET="0")
    folder = Path(request["root"]) / "models" / request["model"]
    sys.argv = ["infer.py", f"--yaml_file_path={request['yaml']}"]
    if (folder / "infer.py").is_file():
        _ask_own_program(folder, values, answer)
    else:
        _ask_executor(request, values, answer)
    if not request["stated"].get("refused"):
        answer["wrong"] += [f"refused: {line}" for line in answer["refusals"]]
    return answer


def _ask_executor(request: dict[str, Any], values: dict[str, Any], answer: dict[str, Any]) -> None:
    stated = request["stated"]
    classes = importlib.import_module("executor.core.config")  # first, as in infer.py: the packages import each other
    if importlib.import_module("executor.offline.infer").parse_args().yaml_file_path != request["yaml"]:
        answer["wrong"].append("the parser reads another YAML")
    answer["checked"].append("parser")
    try:
        config = classes.InferenceConfig.from_dict(values, global_rank=0, local_rank=0)
    except ValueError as refused:
        answer["refusals"].append(str(refused))
        return
    answer["checked"].append("InferenceConfig")
    model, scheduler = config.model_config, config.scheduler_config
    if stated.get("applied"):
        real = (model.exe_mode, model.custom_params.get("enable_superkernel", False), model.enable_static_kernel)
        if real != ("npugraph_ex", True, True):
            answer["wrong"].append(f"mode, scopes and static kernels are {real}")
    elif not stated.get("refused"):
        facts = {
            "ranks": (stated["ranks"], config.parallel_config.world_size),
            "mode": (stated["mode"], model.exe_mode),
            "profiler": (False, model.enable_profiler),
            "cache": (False, model.enable_cache_compile),
            "temperature": (0.0, config.data_config.temperature),
            "scopes": (False, model.custom_params.get("enable_superkernel", False)),
            "steps": (True, scheduler.max_new_tokens - 1 >= 8),
            # ExecutionEngine.max_total_len offline, without the room for drafts that are not accepted
            "context": (
                stated["context"],
                config.data_config.input_truncated_len + scheduler.max_new_tokens * (model.next_n + 1),
            ),
        }
        answer["wrong"] += [f"{name} is {real!r}, not {said!r}" for name, (said, real) in facts.items() if said != real]
        groups = config.parallel_config.attn_dp_size
        share = f", {scheduler.batch_size_per_dp_rank} in each of {groups} " if groups > 1 else ", in one group"
        if stated["batch"] and f"{scheduler.batch_size}{share}" not in stated["batch"]:
            answer["wrong"].append(f"the program has {scheduler.batch_size}{share}, not {stated['batch']}")
    _ask_model(request, config, answer)


def _ask_model(request: dict[str, Any], config: Any, answer: dict[str, Any]) -> None:
    """Let the checks of the model's own file decide, if it can be imported here."""
    models = importlib.import_module("executor.core.support_models")._specs
    module_name, class_name = models[config.model_config.model_name][0]
    try:
        module = importlib.import_module(module_name)
    except Exception as failure:  # noqa: BLE001 - whatever a file of others raises
        answer["checked"].append(f"(its model cannot be imported here: {type(failure).__name__})")
        return
    answer["checked"].append("import of the model")
    stated = request["stated"]
    if decoder := stated.get("decoder"):
        name, where = decoder.removeprefix("its decoder layer is ").split(" in ", 1)
        place = where.partition(",")[0]
        if not inspect.isclass(getattr(module, name, None)) or place != module_name.replace(".", "/") + ".py":
            answer["wrong"].append(f"{module_name} has no class {name}, stated in {place}")
    owner = SimpleNamespace(
        infer_config=config, kv_cache_quant_mode="unquant", enable_mla_prolog=True, moe_tp_size=1,
        attn_tp_size=config.parallel_config.attn_tp_size, update_op_kernel_dict=lambda: None,
    )  # fmt: skip
    of_class = getattr(getattr(module, class_name), "check_model_settings", None)
    checks = [(f"{class_name}.check_model_settings", of_class, owner)]
    checks += [(name, check, config) for name, check in vars(module).items() if name in _CHECKS]
    quantization = getattr(module, "_validate_qwen3_5_quantization_support", None)
    if quantization:
        platforms = ("950",) if config.model_config.custom_params.get("enable_online_mxfp8_quantization") else ("A3",)
        for platform in platforms:
            vars(module)["_PLATFORM_VERSION"] = platform
            checks.append((f"quantization on {platform}", lambda c: quantization(SimpleNamespace(), c), config))
    for name, check, argument in checks:
        if check is None:
            continue
        try:
            check(argument)
        except ValueError as refused:
            answer["refusals"].append(f"{name}: {refused}")
        except Exception as failure:  # noqa: BLE001 - a check that needs more of the model than there is here
            answer["checked"].append(f"({name.rpartition('.')[2]} cannot run here: {type(failure).__name__})")
            continue
        answer["checked"].append(name.rpartition(".")[2])


def _ask_own_program(folder: Path, values: dict[str, Any], answer: dict[str, Any]) -> None:
    """Run the parser and the checks of a model's own infer.py."""
    sys.path[:0] = [str(folder)]
    spec = importlib.util.spec_from_file_location("own_infer", folder / "infer.py")
    assert spec and spec.loader
    program = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(program)
    except Exception as failure:  # noqa: BLE001 - whatever a file of others raises
        said = str(failure).partition(" (")[0]  # without the path of the package here
        answer["checked"].append(f"(its infer.py cannot be imported here: {type(failure).__name__}: {said})")
        return
    program.parse_args()
    answer["checked"].append("parser")
    check = getattr(program, "check_vars", None) or getattr(program, "check_settings", None)
    if check is None:
        answer["checked"].append("(it has no checks)")
        return
    said = check.__name__
    try:
        try:
            check(int(os.environ["WORLD_SIZE"]), values)
        except OSError:  # the checkout has no weights
            with tempfile.TemporaryDirectory() as weights:
                (Path(weights) / "config.json").write_text(json.dumps(SIZES))
                paths = {name: weights for name in values if name.endswith("model_path")}
                check(int(os.environ["WORLD_SIZE"]), {**values, **paths})
            said += " with made-up sizes of the model"
    except ValueError as refused:
        answer["refusals"].append(str(refused))
    answer["checked"].append(said)


def _find(values: Any, wanted: str) -> Any:
    if isinstance(values, dict):
        if wanted in values:
            return values[wanted]
        return next((found for each in values.values() if (found := _find(each, wanted)) is not None), None)
    return None


if __name__ == "__main__":
    requests = json.loads(sys.stdin.read())
    prepare(requests[0]["root"])
    print(json.dumps([answer_to(request) for request in requests]))
