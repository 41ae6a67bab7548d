"""Requests: the options of a search, checked as far as possible without loading a model."""

import math
from dataclasses import dataclass
from pathlib import Path

from sktune.backends import all_backends, backend_info, backend_on
from sktune.backends.info import META_DEVICE, BackendInfo
from sktune.core.contents import has_checkpoint
from sktune.core.errors import BadInputError
from sktune.core.files import real_path
from sktune.core.search_options import SearchOptions
from sktune.targets import RecipeSpec, TargetSpec, describe
from sktune.targets.presets import Preset
from sktune.targets.recipe import needs_cluster

DEFAULT_TRIALS = 40
RANDOM = Path("random")
"""Instead of the folder of weights."""


@dataclass(frozen=True)
class Request(SearchOptions):
    """A search: its options, checked together, and what only sktune itself sets.

    Attributes:
        layers: layers of each kind to which the model is reduced; None for all.
        exact_starting_points: whether to try all starting points first and unchanged, whatever the strategy.
    """

    layers: int | None = None
    exact_starting_points: bool = False

    def __post_init__(self) -> None:
        if bool(self.model) == (self.recipe is not None):
            raise BadInputError("give --model, or --recipe for a program with its own start script")
        if self.recipe and self.trust:
            raise BadInputError("--trust is for a model folder with its own code, not for --recipe; leave it out")
        super().__post_init__()
        if self.study is not None and not self.study.strip():
            raise BadInputError("--study must not be empty; leave it out for a name made of the model")
        if self.study and any("\ud800" <= character <= "\udfff" for character in self.study):
            raise BadInputError(f"--study {self.study!a} is no text in UTF-8; choose another name")
        if self.join and self.storage is None:
            raise BadInputError(
                "--join needs the --storage of the running search, and a --runs that no other search uses"
            )
        if self.standby and (self.join or self.take_over):
            raise BadInputError("--standby waits until no other search runs it; leave out --join and --take-over")
        if self.address and self.engine != "ray":
            raise BadInputError("--address is that of a Ray cluster; add --engine ray")
        if self.recipe and self.engine == "local" and self.is_shared:
            raise BadInputError(
                "a recipe's program uses all dies of its host; leave out --workers, or add --engine ray for more hosts"
            )
        if not 0 < self.compile_timeout_s < math.inf:
            raise BadInputError(
                f"--compile-timeout must be a number of seconds, more than 0; got {self.compile_timeout_s:g}"
            )
        if self.time_budget_s is not None and not self.time_budget_s > 0:
            raise BadInputError(f"--time-budget must be more than 0 s; got {self.time_budget_s:g} s")
        *others, last = dict.fromkeys(device for info in all_backends() for device in real_devices(info))
        if self.device not in (None, *others, last):
            raise BadInputError(f"--device must be {', '.join(others)} or {last}; got {self.device!r}")
        backends = {info.name: info for info in all_backends()}
        if self.backend not in (None, *backends):
            raise BadInputError(f"--backend must be {', '.join(backends)}; got {self.backend!r}")
        if self.constants and (self.backend is None or "constants" not in backends[self.backend].settings):
            raise BadInputError("--constants are for the simulated device; add --backend sim")
        for path in (self.constants, self.profile):
            if path and not path.exists():
                raise BadInputError(f"there is no file {path}")

    @property
    def is_shared(self) -> bool:
        """Whether several workers may share the trials."""
        return self.engine != "local" or (self.workers or 1) > 1

    @property
    def max_trials(self) -> float:
        """Total number of trials of the study; infinite if something else ends the search."""
        if self.trials is not None:
            return self.trials
        return math.inf if self.time_budget_s or self.until_converged else DEFAULT_TRIALS

    @property
    def cache(self) -> Path:
        """Folder of the compilers' caches, which the studies of one runs folder share."""
        return real_path(self.runs / "cache")

    def target(self) -> tuple[TargetSpec, Preset | None]:
        """Return the target that ``model`` or ``recipe`` names, and its preset if it has one."""
        if self.recipe:
            spec = RecipeSpec.of_file(self.recipe, self.seed, lambda name: backend_info(name).devices[0])
            if spec.hosts > 1 and self.engine == "local":
                raise BadInputError(needs_cluster(spec.name, spec.hosts))
            return spec, None
        info = backend_info(self.backend) if self.backend else backend_on(self.device)
        device = self.device or info.devices[0]
        if META_DEVICE in info.devices and self.scale not in (None, "tiny"):
            device = META_DEVICE
        if device not in info.devices:
            raise BadInputError(f"--backend {info.name} runs on {' or '.join(real_devices(info))}, not on {device}")
        weights = self.weights
        # A simulation does not read values.
        if weights is None and not info.is_simulated and has_checkpoint(Path(self.model)):
            weights = Path(self.model)
        weights = None if weights == RANDOM else weights
        return describe(
            self.model, scale=self.scale, weights=weights, seed=self.seed, dtype=self.dtype, backend=info.name,
            device=device, batch=self.batch, context=self.context, constants=self.constants,
            profile=self.profile if "profile" in info.settings else None, layers=self.layers,
            trust=self.trust,
        )  # fmt: skip


def real_devices(info: BackendInfo) -> list[str]:
    """Return the device types of a backend that exist in hardware."""
    return [device for device in info.devices if device != META_DEVICE]
