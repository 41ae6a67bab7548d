"""Fingerprints: what a study's figures hold for. Read without importing torch, so that a resume is quick."""

import hashlib
import platform

from sktune.backends import backend_info
from sktune.backends.installed import device_name, package_version
from sktune.core.space import SpaceSpec
from sktune.targets import TargetSpec

FORMAT = "2"
"""Of fingerprints: since 2 they hold the environment, and files by their content alone."""


def fingerprint(spec: TargetSpec, space: SpaceSpec) -> dict[str, str]:
    """Return what must be equal for a study to be continued: versions, device, environment, model and space.

    What the model's import brings in is known to the worker alone: ``TuningStudy.check_modules`` compares that.
    """
    info = backend_info(spec.backend)
    # By the keys of version 0.1, whose studies can go on.
    space_digest = hashlib.sha256(space.model_dump_json(by_alias=True).encode()).hexdigest()[:16]
    found = {
        "format": FORMAT,
        "sktune": package_version("sktune"),
        "torch": package_version("torch"),
        "transformers": package_version("transformers"),
        "python": platform.python_version(),
        "backend": spec.backend,
        "device": device_name(spec.device),
        # Spelt out, so that a user sees what to give; the model's digest depends on them, too.
        **spec.choices(),
        "model": f"{spec.name} {spec.fingerprint()[:16]}",
        "space": space_digest,
    }
    if not spec.has_own_environment and (variables := info.worker_environment(spec.device)):
        found["memory"] = " ".join(f"{name}={value}" for name, value in variables.items())
    return {**found, **info.fingerprint(spec)}
