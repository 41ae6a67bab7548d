"""Fingerprints: the conditions under which a study's figures are valid; read without torch, to resume quickly."""

import hashlib
import platform

from sktune.backends import backend_info
from sktune.backends.installed import device_name, package_version
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
    return {**common, **info.fingerprint(spec)}
