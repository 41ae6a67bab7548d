"""Requests: the arguments of a search, checked as far as possible without loading a model."""

import math
from dataclasses import dataclass
from pathlib import Path

from sktune.backends import all_backends, backend_info, backend_on
from sktune.backends.info import META_DEVICE, BackendInfo
from sktune.core.contents import has_checkpoint
from sktune.core.errors import BadInputError
from sktune.core.files import real_path
from sktune.core.verification import DEFAULT_VERIFY_STEPS
from sktune.targets import RecipeSpec, TargetSpec, describe
from sktune.targets.presets import Preset
from sktune.targets.recipe import needs_cluster

DEFAULT_TRIALS = 40
RANDOM = Path("random")
"""Instead of the folder of weights."""
ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Request:
    """The arguments of a search.

    Attributes:
        model: a preset, a folder with a ``config.json``, or ``file.py:function``.
        trials: total of the study, not of this call; None for 40, or for no limit with ``time_budget_s`` or
            ``until_converged``.
        study: name of the study; None for one made of model, backend and device.
        storage: URL of an Optuna storage; None for sqlite in the study's folder.
        runs: folder that holds the studies' folders.
        strategy: one of ``sktune.samplers.strategy_names()``, or ``module:function``.
        space: a YAML file with a search space; None for the preset's.
        compile_timeout_s: maximum time for one compile.
        backend: ``inductor``, ``npu`` or ``sim``; None for ``npu`` on the device npu, else ``inductor``.
        scale, dtype, device, batch, context: see ``sktune.targets.TargetSpec``.
        weights: folder of a checkpoint, or ``random``; None for those in the model's folder, if any.
        seed: of weights, inputs and proposals.
        constants: of the simulated device; ``sim`` only.
        profile: of the baseline; it orders the starting points, and ``sim`` uses its kernel times.
        proxy_layers: layers of each kind of a smaller model to search first; None to search only the whole model.
        recipe: a recipe's file, instead of ``model``: a program that is started for each plan.
        until_converged: whether to stop once no plan is expected to save much more.
        layers: layers of each kind to which the model is reduced; None for all.
        exact_starting_points: whether to try all starting points first and unchanged, whatever the strategy.
        verify_steps: decode steps on which the winner is compared with the baseline, bit for bit; of the default, a
            plan that is exact by construction needs ``EXACT_VERIFY_STEPS``.
        time_budget_s: maximum seconds for this call, start and reports included; None for no limit.
        join: whether to work on a study of ``storage`` that another search is running.
        try_inexact: whether to search also option values that may change bits.
        take_over: whether to assume that a search on another host that holds the study has ended.
        standby: whether to wait until no other search runs the study, and then to go on with it.
        trust: whether to run the code in the model's folder.
        engine: ``local`` for workers on this host, ``ray`` for those of a cluster.
        address: of the Ray cluster; None for the one on this host.
        workers: most trials that run at the same time; None for one, or all dies of the cluster.
    """

    model: str
    trials: int | None = None
    study: str | None = None
    storage: str | None = None
    runs: Path = Path("runs")
    strategy: str = "partition"
    space: Path | None = None
    compile_timeout_s: float = 300.0
    scale: str | None = None
    weights: Path | None = None
    dtype: str | None = None
    backend: str | None = None
    device: str | None = None
    batch: int | None = None
    context: int | None = None
    seed: int = 0
    constants: Path | None = None
    profile: Path | None = None
    time_budget_s: float | None = None
    proxy_layers: int | None = None
    layers: int | None = None
    until_converged: bool = False
    recipe: Path | None = None
    exact_starting_points: bool = False
    verify_steps: int = DEFAULT_VERIFY_STEPS
    join: bool = False
    take_over: bool = False
    standby: bool = False
    try_inexact: bool = False
    trust: bool = False
    engine: str = "local"
    address: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        if bool(self.model) == (self.recipe is not None):
            raise BadInputError("give --model, or --recipe for a program with its own start script")
        if self.recipe:
            self._check_recipe()
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
        self._check_engine()
        if self.trials is not None and self.trials < 1:
            raise BadInputError(f"--trials must be at least 1, the total number of trials; got {self.trials}")
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
        if self.dtype not in (None, "bfloat16", "float16", "float32"):
            raise BadInputError(f"--dtype must be bfloat16, float16 or float32; got {self.dtype!r}")
        if self.constants and (self.backend is None or "constants" not in backends[self.backend].settings):
            raise BadInputError("--constants are for the simulated device; add --backend sim")
        for path in (self.constants, self.profile):
            if path and not path.exists():
                raise BadInputError(f"there is no file {path}")
        counts = {"batch": self.batch, "context": self.context, "proxy-layers": self.proxy_layers}
        for name, value in (counts | {"verify-steps": self.verify_steps}).items():
            if value is not None and value < 1:
                raise BadInputError(f"--{name} must be at least 1; got {value}")

    def _check_engine(self) -> None:
        if self.engine not in ENGINES:
            raise BadInputError(f"--engine must be {' or '.join(ENGINES)}; got {self.engine!r}")
        if self.workers is not None and self.workers < 1:
            raise BadInputError(f"--workers must be at least 1; got {self.workers}")
        if self.address and self.engine != "ray":
            raise BadInputError("--address is that of a Ray cluster; add --engine ray")
        if self.recipe and self.engine == "local" and self.is_shared:
            raise BadInputError(
                "a recipe's program uses all dies of its host; leave out --workers, or add --engine ray for more hosts"
            )

    def _check_recipe(self) -> None:
        """Raise ``BadInputError`` if an option is given that the recipe's program decides."""
        if self.trust:
            raise BadInputError("--trust is for a model folder with its own code, not for --recipe; leave it out")
        decided = ("scale", "weights", "dtype", "backend", "device", "batch", "context", "constants", "profile")
        for name in (*decided, "proxy_layers"):
            if getattr(self, name) is not None:
                raise BadInputError(
                    f"--{name.replace('_', '-')} cannot be used with --recipe, whose program decides it; leave it out"
                )

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
