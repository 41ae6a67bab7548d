"""Fingerprints: the conditions under which a study's figures are valid; read without torch, to resume quickly.

The environment variables that change what a step computes or how long it takes belong to them. Whole prefixes are
listed, to include variables of later releases; those known to change neither bits nor figures (logs, dumps, caches,
distribution of compilation over processes) are exceptions.
"""

import hashlib
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sktune.backends import backend_info
from sktune.backends.this_machine import device_name, package_version
from sktune.core.space import SpaceSpec
from sktune.targets import TargetSpec

FORMAT = "2"
"""Version 2 added the environment, and identifies files only by their content."""


def of_request(spec: TargetSpec, space: SpaceSpec) -> dict[str, str]:
    """Return the part of a fingerprint that is the same on all machines."""
    space_digest = hashlib.sha256(space.model_dump_json(by_alias=True).encode()).hexdigest()[:16]
    # The choices are listed so that a user sees which options to give; the model's digest also depends on them.
    return {
        "backend": spec.backend,
        **spec.choices(),
        "model": f"{spec.name} {spec.fingerprint()[:16]}",
        "space": space_digest,
    }


def fingerprint(spec: TargetSpec, space: SpaceSpec) -> dict[str, str]:
    """Return what must be equal for a study to be continued: versions, device, environment, model and space.

    Only the worker knows the modules that the model imports: ``TuningStudy.check_modules`` compares them.
    """
    info = backend_info(spec.backend)
    # A recipe's program has versions of its own, which only its ranks know: ``TuningStudy.check_versions``.
    versions = {} if spec.has_own_environment else {
        "torch": package_version("torch"),
        "transformers": package_version("transformers"),
        "python": platform.python_version(),
    }  # fmt: skip
    common = {
        "format": FORMAT,
        "sktune": package_version("sktune"),
        **versions,
        "device": device_name(spec.device),
        **of_request(spec, space),
    }
    is_timed = not (info.is_simulated or spec.has_own_environment)
    if is_timed and (variables := info.worker_environment(spec.device)):
        common["memory"] = " ".join(f"{name}={value}" for name, value in variables.items())
    environment = {} if info.is_simulated else numerics_environment(spec.device)
    return {**common, **info.fingerprint(spec), **environment}


@dataclass(frozen=True, slots=True)
class VariableGroup:
    """Variables with the same effect.

    Attributes:
        why: what they change.
        names: regular expressions, each for a whole name.
        devices: devices whose steps they change; empty for all.
        without: exceptions, which change neither bits nor figures.
    """

    why: str
    names: tuple[str, ...]
    devices: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


GROUPS = (
    VariableGroup(
        "threads and their placement: the order of partial sums, and the time",
        ("OMP_.+", "GOMP_.+", "KMP_.+", "MKL_.*NUM_THREADS", "MKL_DYNAMIC", "OPENBLAS_.+", "GOTO_NUM_THREADS"),
        without=(
            "OMP_DISPLAY_.+", "OMP_AFFINITY_FORMAT", "OMP_TOOL.*", "OMP_DEBUG.*", "GOMP_DEBUG", "KMP_DUPLICATE_LIB_OK",
            "KMP_SETTINGS", "KMP_VERSION", "KMP_WARNINGS", "OPENBLAS_VERBOSE",
        ),
    ),
    VariableGroup(
        "instruction sets and kernels of ATen, oneDNN and MKL, which determine the order of sums",
        ("ATEN_CPU_CAPABILITY", "MKL_.+", "(ONE)?DNNL?_.+", "TORCH_(MKLDNN|BLAS|LINALG|LINEAR)_.+"),
        without=(
            "MKL_VERBOSE.*", "(ONE)?DNNL?_(JIT_|GRAPH_)?(VERBOSE|DUMP|PROFILE).*", "(ONE)?DNNL?_JITDUMP.*",
        ),
    ),
    VariableGroup("another allocator or another OpenMP", ("LD_PRELOAD",), ("cpu",)),
    VariableGroup(
        "what Dynamo and Inductor compile (torch/_inductor/config.py, torch/_dynamo/config.py)",
        (
            "TORCHINDUCTOR_.+", "TORCHDYNAMO_.+", "TORCH_DYNAMO_.+", "CXX", "TORCH_INDUCTOR_INSTALL_GXX",
            "TORCH_COMPILE_(DISABLE|BACKEND|OVERRIDE_BACKENDS|DYNAMIC_.+|UNBACKED_SOURCES)",
        ),
        without=(
            "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_(FX_GRAPH|AUTOGRAD|BUNDLED_AUTOTUNE)_(REMOTE_)?CACHE.*",
            "TORCHINDUCTOR_REDIS_.+", "TORCHINDUCTOR_NON_BLOCKING_REMOTE_CACHE_WRITE",
            "TORCHINDUCTOR_COMPILE_(THREADS|WORKER_WAIT_TIMEOUT)", "TORCHINDUCTOR_WORKER_.+",
            "TORCHINDUCTOR_QUIESCE_ASYNC_COMPILE_POOL", "TORCHINDUCTOR_FILE_LOCK_TIMEOUT",
            "TORCHINDUCTOR_PRECOMPILATION_TIMEOUT_SECONDS", "TORCHINDUCTOR_(CONV|MM)_LOGGING_FILE",
            "TORCHINDUCTOR_ENABLED_METRIC_TABLES", "TORCHINDUCTOR_WRITE_MISSING_OPS",
            "TORCHINDUCTOR_PATTERN_MATCH_DEBUG", "TORCHINDUCTOR_WARN_MIX_LAYOUT", "TORCHINDUCTOR_DEBUG_FUSION",
            "TORCHINDUCTOR_AUTOTUNE_NUM_CHOICES_DISPLAYED", "TORCHINDUCTOR_MAX_AUTOTUNE_REPORT_CHOICES_STATS",
            "TORCHINDUCTOR_UNIQUE_(USER_)?KERNEL_NAMES", "TORCH_DYNAMO_RUN_GC_AFTER_COMPILE",
            "TORCHDYNAMO_(VERBOSE|PRINT_MISSING|EXTENDED_.+|DEBUG_.+|REPRO_.+|TRANSLATION_.+)",
        ),
    ),
    VariableGroup(
        "arithmetic and kernels of CUDA, cuBLAS, cuDNN, Triton and Inductor's templates",
        (
            "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUBLAS(LT)?_WORKSPACE_.+", "TORCH_CUDNN_.+",
            "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "TRITON_.+", "DISABLE_LLVM_OPT",
            "CUTLASS_EPILOGUE_FUSION", "CUTEDSL_ENABLE_AUTOTUNING", "ENABLE_(PERSISTENT_TMA|TEMPLATE_TMA|TMA_LOAD)_.+",
        ),
        ("cuda",),
        (
            "TRITON_(CACHE|DUMP|HOME|OVERRIDE|STORE|KERNEL_DUMP|KERNEL_OVERRIDE|REPRODUCER|PRINT)_?.*",
            "TRITON_ALWAYS_COMPILE", "TORCH_CUDNN_.*DEBUG",
        ),
    ),
    VariableGroup(
        "order of sums between dies and within a matmul; overflow; queues of a host that launches operators "
        "(hiascend.com, environment variables of CANN and of Ascend Extension for PyTorch)",
        (
            "[HL]CCL_DETERMINISTIC", "HCCL_(ALGO|OP_EXPANSION_MODE|BUFFSIZE)", "TORCH_HCCL_ZERO_COPY",
            "CLOSE_MATMUL_K_SHIFT", "ATB_.+", "LCOC_.+", "INF_NAN_MODE_.+",
            "COMBINED_ENABLE", "ASCEND_LAUNCH_BLOCKING", "TASK_QUEUE_ENABLE",
            "PER_STREAM_QUEUE", "STREAMS_PER_DEVICE", "CPU_AFFINITY_CONF", "MULTI_STREAM_MEMORY_REUSE", "NPU_ASD_.+",
            "TORCH_NPU_(USE_COMPATIBLE_IMPL|LEGACY_IMPL_LIST|LAZY_FUSION)", "TORCH_ACL_INIT_CONFIG_PATH",
            "ASCEND_CUSTOM_OPP_PATH", "AUTOFUSE_FLAGS",
        ),
        ("npu",),
        ("ATB_(LOG|PROFILING|SAVE|HOME|STREAM_SYNC|SHARE_MEMORY_NAME)_?.*",),
    ),
)  # fmt: skip


def numerics_environment(device: str, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of ``GROUPS`` that are set and matter for a step on ``device``.

    Args:
        device: ``cpu``, ``cuda`` or ``npu``.
        environment: None for this process's.
    """
    variables = sorted((os.environ if environment is None else environment).items())
    return {name: value for name, value in variables if any(_includes(group, name, device) for group in GROUPS)}


def _includes(group: VariableGroup, name: str, device: str) -> bool:
    if group.devices and device not in group.devices:
        return False
    is_named = any(re.fullmatch(pattern, name) for pattern in group.names)
    return is_named and not any(re.fullmatch(pattern, name) for pattern in group.without)
