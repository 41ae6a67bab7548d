"""A folder's ``config.json``, checked before a model is built from it: transformers builds whatever the numbers say."""

from math import isfinite
from pathlib import Path
from typing import Any

from torch import nn

from sktune.core.errors import TargetError
from sktune.core.files import read_bytes
from sktune.core.plain_data import load_json
from sktune.measure.machine import available_memory

MAX_LAYERS = 1000
MAX_NUMBER = 1 << 31
"""Larger sizes are mistakes: no axis of a model is so long."""


def check_configuration(folder: Path) -> None:
    """Check the sizes in a folder's ``config.json``.

    Raises:
        TargetError: it cannot be read, or a size is absurd; the message names the key.
    """
    path = folder / "config.json"
    values = load_json(read_bytes(path, TargetError, "fix it"), str(path), TargetError, "fix it")
    if not isinstance(values, dict):
        raise TargetError(f"{path} is not a mapping of keys; give a Hugging Face model folder")
    _check_sizes(values, path)


def check_memory(model: nn.Module, path: Path) -> None:
    """Check that a model, built without values from the ``config.json`` at ``path``, fits into this machine's memory.

    Raises:
        TargetError: it does not.
    """
    needed = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if needed > (available := available_memory()):
        raise TargetError(
            f"the model of {path} needs {needed / 2**30:.0f} GiB, and {available / 2**30:.0f} GiB of memory are free; "
            "use --proxy-layers, or --backend sim"
        )


def _check_sizes(values: Any, path: Path) -> None:
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        limit = MAX_LAYERS if "layers" in str(key) else MAX_NUMBER
        is_size = isinstance(value, int) and "theta" not in str(key)
        is_absurd = isinstance(value, float) and not isfinite(value)
        if is_absurd or (is_size and not -MAX_NUMBER <= value <= limit):
            raise TargetError(f"{path}: {key} is {value!r:.40}, and the limit is {limit:,}; fix it")
        if isinstance(value, dict | list):
            _check_sizes(value, path)
