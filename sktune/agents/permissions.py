"""What a server of tools lets agents do beyond reading and searching presets and configurations."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sktune.core.contents import module_files
from sktune.core.errors import BadInputError
from sktune.core.files import real_path
from sktune.targets import TargetSpec
from sktune.targets.recipe import read_recipe
from sktune.targets.spec import ConfigSpec, FunctionSpec, PresetSpec, RecipeSpec


@dataclass(frozen=True, slots=True)
class Permissions:
    """What whoever started the server has allowed.

    Attributes:
        writes: whether files of a model may be changed.
        roots: folders whose Python files and recipes may be executed, with real paths.
        addresses: Ray clusters that may be connected to: each can execute code here. The one on this host always may.
    """

    writes: bool = False
    roots: tuple[Path, ...] = ()
    addresses: tuple[str, ...] = ()

    @classmethod
    def of_folders(cls, folders: Iterable[Path], *, writes: bool, addresses: Iterable[str] = ()) -> "Permissions":
        """Return permissions to execute what is below ``folders``.

        Raises:
            BadInputError: one of them is not a folder.
        """
        roots = tuple(real_path(folder) for folder in folders)
        if wrong := next((root for root in roots if not root.is_dir()), None):
            raise BadInputError(f"--allow-run {wrong} is not a folder; give the one whose code agents may run")
        return cls(writes, roots, tuple(addresses))

    def check_target(self, spec: TargetSpec) -> None:
        """Raise ``BadInputError`` if building or running the target executes code outside of ``roots``."""
        self._check(_executed(spec), f"{spec.source} is code")

    def check_address(self, address: str | None) -> None:
        """Raise ``BadInputError`` if an address is that of a cluster that nobody has allowed."""
        if address is not None and address not in self.addresses:
            known = " or ".join(("the Ray cluster of its host", *self.addresses))
            raise BadInputError(
                f"this server connects only to {known}, and a cluster can run code here; start it with "
                f"--allow-cluster {address} to use this"
            )

    def check_strategy(self, strategy: str | None) -> None:
        """Raise ``BadInputError`` if a strategy's name, ``module:name``, imports code outside of ``roots``."""
        module, colon, _ = (strategy or "").partition(":")
        if colon:
            self._check(_files_of(module), f"the strategy {strategy} is code")

    def _check(self, executed: Iterable[Path], what: str) -> None:
        for path in executed:
            real = real_path(path)
            if not any(real.is_relative_to(root) for root in self.roots):
                where = f"code below {', '.join(map(str, self.roots))}" if self.roots else "presets and config.json"
                raise BadInputError(
                    f"{what}, and this server runs only {where}; start it with --allow-run {real.parent} to run this"
                )


def _executed(spec: TargetSpec) -> list[Path]:
    """Return the user's files and folders whose code is executed when the target is built or run."""
    match spec:
        case ConfigSpec(trust=True):
            return [spec.folder]
        case PresetSpec() | ConfigSpec():
            return []  # transformers' own code
        case FunctionSpec():
            return _files_of(spec.place)
        case RecipeSpec():
            recipe = read_recipe(Path(spec.source))
            return [Path(spec.source), recipe.directory, *([recipe.yaml.file] if recipe.yaml else [])]
    return [Path(spec.source)]


def _files_of(place: str) -> list[Path]:
    """Return the files of a module and of its packages; ``place`` is its file or its name."""
    return [Path(place)] if place.endswith(".py") else module_files(place) or [Path(place)]
