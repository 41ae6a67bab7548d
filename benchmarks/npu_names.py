"""What the front ends of this environment have, as they say themselves: ``python -m benchmarks.npu_names``."""

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from typing import Any

PACKAGES = ("torch_npu", "torch", "transformers", "numpy", "protobuf")


def versions() -> dict[str, str]:
    """Return the versions in this environment."""
    return {"python": sys.version.split()[0]} | {name: version(name) for name in PACKAGES}


def look() -> dict[str, list[str]]:
    """Return what the front ends of this environment have, by themselves."""
    import torch
    import torch_npu

    torchair, npugraph_ex = import_module("torchair"), import_module("npugraph_ex")  # after torch_npu
    config = torchair.CompilerConfig()
    graph = npugraph_ex.CompilerConfig()
    options = _validated(torch_npu.npu.NPUGraph)
    return {
        "backends of torch.compile": sorted(
            {"npu", "npugraph_ex", "npugraphs"} & {*torch._dynamo.list_backends(exclude_tags=())}
        ),
        "operators of npugraph_ex's scopes": [
            str(getattr(torch.ops.npu, f"super_kernel_scope_{end}").default._schema) for end in ("begin", "end")
        ],
        "options of npugraph_ex's SuperKernels": options["optimize_options"],
        "debug options of npugraph_ex's SuperKernels": options["debug_options"],
        "options of npugraph_ex": _graph_options(graph),
        "scopes of TorchAir": [
            f"{name}{inspect.signature(function)}"
            for name, function in inspect.getmembers(torchair.scope, inspect.isfunction)
            if not name.startswith("_")
        ],
        "attributes of super_kernel": [name for name, _ in torchair.scope.super_kernel("label", "").attrs],
        "attributes of npu_stream_switch": [name for name, _ in torchair.scope.npu_stream_switch("1").attrs],
        "TorchAir's experimental_config": _public(config.experimental_config),
        "TorchAir's debug": _public(config.debug),
        "operators with a converter": list(_converted(torch)),
    }


def _validated(graph: Any) -> dict[str, list[str]]:
    """Return the keys that ``NPUGraph._validate_options`` knows, which stand in a dictionary of its code."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(graph._validate_options)))
    known = next(
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Dict)
        and ast.unparse(node.targets[0]) == "valid_options"
    )
    return {
        ast.literal_eval(key): list(ast.literal_eval(inner))
        for key, inner in zip(known.keys, known.values, strict=True)
        if key is not None
    }


def _graph_options(config: Any) -> list[str]:
    try:
        known = import_module("npugraph_ex.configs.npugraphex_config")._NpuGraphExConfig.ALLOWED_OPTIONS
    except ImportError:  # since 2.10
        return _public(config)
    return sorted(name for name in known if not name.startswith("_"))


def _public(config: Any) -> list[str]:
    return sorted(name for name in vars(config) if not name.startswith("_"))


def _converted(torch: Any) -> Iterator[str]:
    """Yield the operators of torch that have a converter which does not only raise."""
    import_module("torchair._ge_concrete_graph.ge_converter")  # registers them
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        operator = getattr(getattr(getattr(torch.ops, space), base, None), overload or "default", None)
        converter = getattr(operator, "_ge_converter", None)
        if converter is not None and inspect.unwrap(converter).__code__.co_names != ("NotImplementedError",):
            yield f"{space}.{base}.{overload or 'default'}"


if __name__ == "__main__":
    print(json.dumps({"versions": versions(), "facts": look()}))
