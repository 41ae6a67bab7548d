"""What the files of a cann-recipes-infer checkout say about a model: who starts it, and where its decoder is.

Sources, in hicann/cann-recipes-infer at fbc225d: executor/scripts/infer.sh and function.sh (launch), and
executor/core/support_models.py (classes by model name). At 3a0b2c8, of December 2025, there is no such infer.sh: each
model has one of its own, which names its YAML itself.
"""

import ast
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sktune.core.files import source_text

SCRIPT = Path("executor/scripts/infer.sh")
"""The script that starts a model of cann-recipes-infer, relative to the checkout's root."""
_FUNCTIONS = SCRIPT.with_name("function.sh")
_SET_ENV = SCRIPT.with_name("set_env.sh")
DIES = {"950": 8}
"""Dies of one server by ``platform_version``, where they are not those of an Atlas A3 server."""
A3_DIES = 16
_REGISTRY = Path("executor/core/support_models.py")
_LAUNCH = re.compile(r"(?<![\w.])function\.sh\b")
"""The functions behind ``SCRIPT``: a model's own script that uses them is the same launch with a fixed YAML."""
_OWN_YAML = re.compile(r"^export YAML_FILE_NAME=", re.MULTILINE)
_WITH_OTHER_YAML = 'cd {folder} && declare -rx YAML_FILE_NAME="$0" && source ./infer.sh'
"""Runs a script that names its YAML itself: bash keeps the value of a read-only variable, and goes on."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A checkout of cann-recipes-infer: ``root`` has ``SCRIPT`` or, in older releases, the functions that it calls."""

    root: Path

    @property
    def has_script(self) -> bool:
        """Whether one script starts every model."""
        return (self.root / SCRIPT).is_file()

    @property
    def models(self) -> list[Path]:
        """The models' folders."""
        return sorted(path for path in (self.root / "models").glob("*/") if path.is_dir())

    def models_in(self, folder: Path) -> list[Path]:
        """Return the model that ``folder`` belongs to, or all models."""
        return [model for model in self.models if folder.is_relative_to(model)] or self.models

    def configs(self, model: Path) -> list[Path]:
        """Return the YAML files with which ``SCRIPT`` can start a model."""
        return sorted((model / "config").rglob("*.yaml"))

    def starts(self, model: Path) -> bool:
        """Whether a model is started by ``SCRIPT``, even if it has a script of its own, or by the older launch."""
        own = model / "infer.sh"
        if not self.has_script:
            return own.is_file() and bool(_LAUNCH.search(text := source_text(own)) and _OWN_YAML.search(text))
        return not own.is_file() or bool(_LAUNCH.search(source_text(own)))

    def launcher(self, model: Path) -> Path:
        """Return the script that starts a model, relative to the root."""
        return SCRIPT if self.has_script else (model / "infer.sh").relative_to(self.root)

    def set_env(self, model: Path) -> Path:
        """Return the script that lists the servers, relative to the root; a model's own one is read after the other."""
        own = model / _SET_ENV.name
        lists_servers = own.is_file() and "IPs=" in source_text(own)
        return own.relative_to(self.root) if lists_servers else _SET_ENV

    def command(self, model: Path, file: Path) -> str:
        """Return the command that starts ``model`` with a copy of ``file``, wherever that is."""
        inside = Path(os.path.relpath(file.parent, model / "config")).as_posix()
        name = "{yaml_name}" if inside == "." else shlex.quote(inside) + "/{yaml_name}"
        if self.has_script:
            return shlex.join(["bash", SCRIPT.as_posix(), "--model", model.name, "--yaml"]) + f" {name}"
        folder = shlex.quote(model.relative_to(self.root).as_posix())
        return shlex.join(["bash", "-c", _WITH_OTHER_YAML.format(folder=folder)]) + f" {name}"

    def classes(self, name: Any) -> list[tuple[Path, str]] | None:
        """Return the files and classes that the registry has for a model's name, the model's own first.

        Returns:
            None if there is no registry; an empty list if it does not know the name.
        """
        if not (self.root / _REGISTRY).is_file():
            return None
        tree = ast.parse(source_text(self.root / _REGISTRY))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Dict):
                continue
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name:
                    pairs = ast.literal_eval(value)
                    return [(self.root / (module.replace(".", "/") + ".py"), of) for module, of in pairs]
        return []


def checkout_of(folder: Path) -> Checkout | None:
    """Return the checkout that ``folder`` is in, or None."""
    places = (folder, *folder.parents)
    return next(
        (Checkout(each) for each in places if any((each / name).is_file() for name in (SCRIPT, _FUNCTIONS))), None
    )


@dataclass(frozen=True, slots=True)
class Decoder:
    """The class of a model's layers, and the list of them."""

    layer: str
    file: Path
    owner: str
    attribute: str


def decoder_in(files: list[Path]) -> Decoder | None:
    """Return the decoder layer of the first file that has one: the class in a ``ModuleList`` named ``layers``."""
    for file in files:
        try:
            tree = ast.parse(source_text(file))
        except (OSError, SyntaxError, ValueError):
            continue
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        known = {node.name for node in classes}
        for owner in classes:
            if layer := _layer_class(owner, known):
                return Decoder(layer, file, owner.name, "layers")
    return None


def _layer_class(owner: ast.ClassDef, known: set[str]) -> str:
    """Return the class that ``owner`` puts into ``self.layers``, of those in its file; empty if none."""
    for node in ast.walk(owner):
        built: ast.AST | None = None
        if isinstance(node, ast.Assign) and any(_is_layers(target) for target in node.targets):
            built = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            built = node if _is_layers(node.func.value) else None
        calls = (call.func for call in ast.walk(built) if isinstance(call, ast.Call)) if built else ()
        for called in calls:
            if isinstance(called, ast.Name) and called.id in known:
                return called.id
    return ""


def _is_layers(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "layers" and isinstance(node.value, ast.Name)
