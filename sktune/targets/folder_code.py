"""A model folder's own code: the classes that its ``config.json`` names under ``auto_map``.

transformers runs a copy of such files, from a cache in the user's home. Here they are imported where they are: what
runs is what the target's fingerprint covers, nothing is downloaded, and nothing is written.
"""

import hashlib
import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from sktune.core.errors import TargetError, described
from sktune.core.files import read_bytes, real_path

CONFIG, MODEL = "AutoConfig", "AutoModelForCausalLM"
"""The keys of ``auto_map`` that a causal language model can have; a tokenizer's are ignored."""


def named_classes(folder: Path) -> dict[str, str]:
    """Return the classes of its own that a folder names, as ``file.Class``, by ``CONFIG`` or ``MODEL``."""
    entries = _configuration(folder).get("auto_map")
    if not isinstance(entries, dict):
        return {}
    return {key: name for key in (CONFIG, MODEL) if isinstance(name := entries.get(key), str)}


def code_files(folder: Path) -> list[Path]:
    """Return all files that the code in a folder may consist of."""
    return sorted(path for path in folder.rglob("*.py") if path.is_file())


def refuse_untrusted(folder: Path) -> None:
    """Raise ``TargetError`` if a folder's model exists only in its own code, which nobody allowed to run."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    classes = named_classes(folder)
    if classes and _configuration(folder).get("model_type") not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        _refuse_elsewhere(folder, classes)
        files = ", ".join(sorted({f"{name.partition('.')[0]}.py" for name in classes.values()}))
        raise TargetError(f"the model in {folder} is code of its own ({files}); read it, then run it with --trust")


def _refuse_elsewhere(folder: Path, classes: Mapping[str, str]) -> None:
    """Raise ``TargetError`` if a class is in another repository, ``owner/name--file.Class``: nothing is downloaded."""
    if elsewhere := ", ".join(sorted({name.partition("--")[0] for name in classes.values() if "--" in name})):
        raise TargetError(
            f"the code of the model in {folder} is in another repository, {elsewhere}: copy its Python files into the "
            "folder, and write FILE.CLASS alone into the auto_map of its config.json"
        )


def own_class(folder: Path, key: str) -> Any:
    """Import and return one of the classes that a folder names; None if it does not name this one.

    Raises:
        TargetError: the name is not that of a class in the folder, or the import fails.
    """
    classes = named_classes(folder)
    if (name := classes.get(key)) is None:
        return None
    _refuse_elsewhere(folder, classes)
    module, _, class_name = name.partition(".")
    if not (module.isidentifier() and class_name.isidentifier() and (folder / f"{module}.py").is_file()):
        raise TargetError(
            f"{folder / 'config.json'}: auto_map has {name!r} for {key}; name FILE.CLASS of a file in this folder"
        )
    try:
        return getattr(_imported(real_path(folder), module), class_name)
    except Exception as failure:
        raise TargetError(
            f"{folder / module}.py cannot be imported: {described(failure)}; fix the file, or install what it needs"
        ) from failure


def _imported(folder: Path, name: str) -> ModuleType:
    """Import a file of ``folder`` as part of a package, so that its relative imports work."""
    package = f"sktune_folder_{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
    if package not in sys.modules:
        parent = ModuleType(package, "A model folder with its own code.")
        parent.__path__ = [str(folder)]
        sys.modules[package] = parent
    importlib.invalidate_caches()
    writes_bytecode, sys.dont_write_bytecode = not sys.dont_write_bytecode, True  # the folder is the user's
    try:
        return importlib.import_module(f"{package}.{name}")
    finally:
        sys.dont_write_bytecode = not writes_bytecode


def forget_code() -> None:
    """Make the next import read the files of all folders again."""
    for name in [name for name in sys.modules if name.startswith("sktune_folder_")]:
        del sys.modules[name]


def _configuration(folder: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_bytes(folder / "config.json", TargetError, "fix it"))
    except (TargetError, ValueError, RecursionError):  # transformers says what is wrong with it
        return {}
    return values if isinstance(values, dict) else {}
