"""PyTorch's private names that sktune uses, each with its use and the versions of torch in which it was seen to hold.

Everything else takes them from here, so this is the file to read when a new torch breaks something. None is imported
before it is used. ``tests/backends/test_torch_private.py`` says by its name which one an installed torch lacks.
"""

# ruff: noqa: SLF001
from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:  # classes with subclasses
    from torch._inductor.codecache import CppCodeCache as CppCodeCache
    from torch._inductor.custom_graph_pass import CustomGraphPass as CustomGraphPass
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

ALL = (2, 6), (2, 15)
"""The first and the last version of torch in which a name was seen: 2.6.0, 2.8.0, 2.10.0, 2.13.0, 2.14.0, 2.15.0."""
INDUCTOR = (2, 8), (2, 15)
"""The same without 2.6.0, whose Inductor ``inductor.versions`` refuses."""
OLD = (2, 8), (2, 9)
"""The versions that need a name, of which 2.8.0 was tried; newer ones may lack it."""

_NAMES: Mapping[str, Mapping[str, tuple[tuple[tuple[int, int], tuple[int, int]], str]]] = {
    "torch": {"_register_device_module": (ALL, "gives torch the stand-in of torch.npu, as its documentation says")},
    "torch._C": {"DisableTorchFunctionSubclass": (ALL, "reads the bits of a tensor whose class returns others")},
    "torch._dynamo": {"mark_static_address": (ALL, "marks state that keeps its address, as transformers does")},
    "torch._dynamo.exc": {"BackendCompilerFailed": (INDUCTOR, "holds what was raised while a graph was received")},
    "torch._guards": {
        "TracingContext": (INDUCTOR, "what Inductor asks for the sizes of a graph that no capture has made"),
        "tracing": (INDUCTOR, "the context in which that one is asked"),
    },
    "torch._ops": {"OpOverload": (ALL, "tells an operator from a Python function in a captured graph")},
    "torch._subclasses.fake_tensor": {
        "FakeTensor": (ALL, "has no bits, so that it is neither compared nor entered"),
        "FakeTensorMode": (INDUCTOR, "runs a graph without computing, to see what it calls and writes"),
    },
    "torch.compiler._cache": {
        "CacheArtifactManager.with_fresh_cache": (INDUCTOR, "saves only the entries that a plan uses"),
    },
    "torch.fx.experimental.symbolic_shapes": {"ShapeEnv": (INDUCTOR, "lets sizes depend on the data")},
    "torch.utils._filelock": {"FileLock": (INDUCTOR, "the lock with which Inductor builds a library")},
    "torch.utils._python_dispatch": {"TorchDispatchMode": (ALL, "shows each operator that a step runs")},
    "torch.utils._pytree": {"tree_leaves": (ALL, "finds the tensors in what a step takes or returns")},
    "torchgen.aoti.fallback_ops": {
        "inductor_fallback_ops": (INDUCTOR, "the operators with a C function: those of shims.cpp are added"),
    },
    "torch._inductor": {"config": (INDUCTOR, "settings and their patch; enable_line_tables since 2.13")},
    "torch._inductor.codecache": {
        "CppCodeCache": (INDUCTOR, "builds and loads libraries of kernels, and shims.cpp"),
        "CppCodeCache._load_library": (INDUCTOR, "records the libraries that a plan loads"),
        "CppPythonBindingsCodeCache": (INDUCTOR, "loads libraries whose wrapper is Python"),
        "CppWrapperCodeCache": (INDUCTOR, "loads libraries whose wrapper is C++"),
        "GuardedCache.iterate_over_candidates": (INDUCTOR, "reads entries: damaged ones are deleted first"),
        "LOCK_TIMEOUT": (INDUCTOR, "how long a build waits for another"),
        "PersistentCache": (INDUCTOR, "the timings by which kernels were chosen; delivered ones are added"),
        "PersistentCache.lookup": (INDUCTOR, "records these timings"),
        "PyCodeCache.load_by_key_path": (INDUCTOR, "records the code that a region loads"),
        "_get_cpp_wrapper_header": (INDUCTOR, "the header of C++ wrappers, to which shims.h is added"),
        "_worker_compile_cpp": (INDUCTOR, "builds libraries: replaced, so that only whole ones count"),
        "get_lock_dir": (INDUCTOR, "the folder of locks, for that of a region"),
        "sha256_hash": (INDUCTOR, "the digest that an entry's file is named by"),
        "write": (INDUCTOR, "writes generated code: corrects a file with other content than its name says"),
        "write_atomic": (INDUCTOR, "writes a file as a whole or not at all"),
    },
    "torch._inductor.codegen.cpp": {
        "CppKernel.cache_dtype_convert": (INDUCTOR, "uses the unrounded value of an emulated cast: switched off"),
        "CppVecOverrides.to_dtype": (INDUCTOR, "casts vectors; it has the argument use_compute_types since 2.13"),
    },
    "torch._inductor.codegen.cpp_template": {
        "CppTemplate.index_counter": (INDUCTOR, "numbers templates in a process: begins anew for each region"),
    },
    "torch._inductor.codegen.cpp_wrapper_cpu": {
        "CppWrapperCpu.write_constant": (INDUCTOR, "writes a constant's address into a comment: left out"),
    },
    "torch._inductor.codegen.wrapper": {
        "PythonWrapperCodegen.write_constant": (INDUCTOR, "writes a constant's address into a comment: left out"),
    },
    "torch._inductor.compile_fx": {"compile_fx": (INDUCTOR, "compiles the graph of a region")},
    "torch._inductor.cpp_builder": {
        "CppBuilder.get_target_file_path": (INDUCTOR, "the library that is tried: deleted first if it is damaged"),
    },
    "torch._inductor.cpu_vec_isa": {
        "VecISA.check_build": (INDUCTOR, "tries vector instructions; since 2.14 it leaves a file .load_ok"),
    },
    "torch._inductor.custom_graph_pass": {
        "CustomGraphPass": (INDUCTOR, "separates code in the caches that other rules have made"),
    },
    "torch._inductor.decomposition": {
        "fast_random_decomps": (INDUCTOR, "the table of decompositions: kept operators leave it"),
    },
    "torch._inductor.dependencies": {"WeakDep": (OLD, "what a write waits for")},
    "torch._inductor.fx_passes.post_grad": {
        "remove_noop_ops": (INDUCTOR, "drops copies between two writes: switched off where a region writes inputs"),
    },
    "torch._inductor.ir": {
        "ConcatKernel.realize_into": (INDUCTOR, "joins tensors: made to copy; it takes allow_alias since 2.15"),
        "ExternKernel.require_exact_strides": (INDUCTOR, "lays out inputs as in eager execution"),
        "IRNode": (INDUCTOR, "tells lowered values among an operator's arguments"),
        "Pointwise.create": (INDUCTOR, "copies a value that is joined"),
        "TensorBox": (INDUCTOR, "tells lowered tensors among an operator's arguments"),
    },
    "torch._inductor.kernel.bmm": {"aten_bmm": (INDUCTOR, "leaves bmm to ATen's kernel")},
    "torch._inductor.kernel.mm_common": {"mm_args": (INDUCTOR, "the layout of that product")},
    "torch._inductor.lowering": {
        "_maybe_layout_constraints": (INDUCTOR, "the table of layouts: kept operators get eager's"),
        "fallback_handler": (INDUCTOR, "leaves an operator to ATen's kernel"),
        "get_constant_value": (OLD, "finds constant divisors, whose reciprocal is multiplied: switched off"),
        "lowerings": (INDUCTOR, "the table of lowerings: kept operators get others"),
        "register_lowering": (OLD, "refuses strict marks that Inductor would remove"),
    },
    "torch._inductor.output_code": {
        "CompiledFxGraph.write_to_disk": (INDUCTOR, "writes cached code: corrects a damaged file"),
    },
    "torch._inductor.runtime.cache_dir_utils": {"default_cache_dir": (INDUCTOR, "a folder all workers share")},
    "torch._inductor.scheduler": {"_prune_redundant_deps": (OLD, "forgets that a write waits: replaced")},
    "torch._inductor.select_algorithm": {
        "TritonTemplate.index_counter": (INDUCTOR, "numbers templates in a process: begins anew for each region"),
    },
    "torch._inductor.utils": {"clear_caches": (INDUCTOR, "empties the caches in memory, of which nothing is recorded")},
}
NAMES = {name: (module, *facts) for module, names in _NAMES.items() for name, facts in names.items()}
"""Each name with its module, its versions and its use."""

MACHINERY = ("torch._dynamo.", "torch._inductor.", "torch._functorch.", "torch.fx.")
"""Packages that compile a step: the data of their types and functions is not the program's (``ALL``)."""
DEVICE_FUNCTIONS = ("_lazy_init", "_is_in_bad_fork")
"""What torch calls in the module of a device, such as ``torch.cuda``, and so in a stand-in for one (``ALL``)."""

DYNAMO_GRAPHS = 8
"""The default of ``torch._dynamo.config.recompile_limit`` (``ALL``)."""


def __getattr__(name: str) -> Any:
    """Return what has one of the names above, so that it can be imported from here."""
    if name not in NAMES:
        raise AttributeError(f"{__name__} has no {name}")
    return resolve(name)


def resolve(name: str) -> Any:
    """Return what has one of the names above, as it is now.

    Raises:
        ImportError: the installed torch has nothing of that name.
    """
    module, _, use = NAMES[name]
    try:
        return attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError) as failure:
        raise ImportError(f"torch has no {module}.{name} ({use})") from failure


def replaced(name: str, other: Any) -> Any:
    """Return a context within which torch finds ``other`` under one of the names above."""
    module, (path, _, attribute) = importlib.import_module(NAMES[name][0]), name.rpartition(".")
    return patch.object(attrgetter(path)(module) if path else module, attribute, other)


def own_tracing() -> Any:
    """Return a context in which Inductor compiles a graph apart from the capture that is going on."""
    mode = resolve("FakeTensorMode")(shape_env=resolve("ShapeEnv")())
    return resolve("tracing")(resolve("TracingContext")(mode))


def allow_graphs(more: int) -> None:
    """Let Dynamo keep ``more`` graphs of a function than it does by default, one for each shape (``ALL``)."""
    settings: Any = importlib.import_module("torch._dynamo.config")
    settings.cache_size_limit = max(settings.cache_size_limit, DYNAMO_GRAPHS + more)  # an alias of recompile_limit


def storage_id(tensor: Any) -> int:
    """Return what identifies a tensor's storage: fake tensors have no address (``ALL``)."""
    return int(tensor.untyped_storage()._cdata)


def schema_of(operator: Any) -> Any:
    """Return the schema of an operator: its arguments, and which of them it writes (``ALL``)."""
    return operator._schema


def version_counter(tensor: Any) -> int:
    """Return how often a tensor was written to in place; 0 if nothing counts that (``ALL``)."""
    return 0 if tensor.is_inference() else int(tensor._version)


def sparse_parts(tensor: Any) -> Iterable[Any]:
    """Return indices and values of a sparse tensor as they are: ``indices()`` refuses repeated ones (``ALL``)."""
    return tensor._indices(), tensor._values()


def children(module: Any) -> Mapping[str, Any]:
    """Return the children of a module by name, shared ones too, which ``named_children()`` leaves out (``ALL``)."""
    return module._modules  # type: ignore[no-any-return]


def parameters(module: Any) -> Mapping[str, Any]:
    """Return a module's own parameters by name, shared ones too (``ALL``)."""
    return module._parameters  # type: ignore[no-any-return]


def is_static(tensor: Any) -> bool:
    """Return whether a tensor was marked with ``mark_static_address`` (``ALL``)."""
    return getattr(tensor, "_dynamo_static_input_type", None) is not None


def source_of(placeholder: Any) -> Any:
    """Return where Dynamo found an input of a graph; None if it does not say (``INDUCTOR``)."""
    argument = placeholder.meta.get("grapharg")
    return getattr(argument, "source", None) or getattr(placeholder, "_dynamo_source", None)


def load_library(cache: Any, path: str, key: str) -> Any:
    """Return the library at a path, as a subclass of ``CppCodeCache`` loads it (``INDUCTOR``)."""
    return cache._load_library(path, key)


def folder_of_entries(cache: Any, key: str) -> str:
    """Return the folder of the entries that a ``GuardedCache`` has for a key (``INDUCTOR``)."""
    return str(cache._get_tmp_dir_for_key(key))
