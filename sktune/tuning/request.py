"""Requests: the options of a search, checked as far as possible without loading a model, and the space they ask for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from sktune.backends import BUILT_IN, all_backends, backend_info, backend_on, each_backend
from sktune.backends.info import META_DEVICE, BackendInfo
from sktune.backends.options import with_bit_changing
from sktune.core.contents import has_checkpoint
from sktune.core.errors import BadInputError, SpaceError, nearest
from sktune.core.files import real_path
from sktune.core.layout import Layout
from sktune.core.plan import Option
from sktune.core.search_options import SearchOptions
from sktune.core.shapes import NAMES as SIZES
from sktune.core.shapes import StepShape, check_shapes
from sktune.core.space import SearchSpace, SpaceSpec, StartingPoint, bind
from sktune.targets import RecipeSpec, TargetSpec, describe
from sktune.targets.presets import Preset, load_space
from sktune.targets.recipe import needs_cluster

DEFAULT_TRIALS = 40
CONVERGED_GAIN = 0.005
"""Share of the baseline step: a search that may still gain less than this is one that can be stopped."""
RANDOM = Path("random")
"""Instead of the folder of weights."""


@dataclass(frozen=True)
class Request(SearchOptions):
    """A search: its options, checked together, and what only sktune itself sets.

    Attributes:
        layers: layers of each kind to which the model is reduced; None for all.
        exact_starting_points: whether to try all starting points first and unchanged, whatever the strategy.
        points: plans to try before any proposal; the final comparison verifies and compares each that has passed.
        compares: whether the search ends with a final comparison, and with reports.
    """

    layers: int | None = None
    exact_starting_points: bool = False
    points: tuple[StartingPoint, ...] = ()
    compares: bool = True

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
        if self.shapes is None and (self.regret is not None or self.objective != "sum"):
            raise BadInputError("--regret and --objective are for several shapes; add --shapes")
        if self.shapes is not None:
            self._check_shapes(self.shapes)
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
        for flag, share in (("--until", self.until), ("--regret", self.regret)):
            if share is not None and not 0 < share < 1:
                raise BadInputError(f"{flag} must be a share of the step such as 1%; got {share:g}")
        if self.time_budget_s is not None and not self.time_budget_s > 0:
            raise BadInputError(f"--time-budget must be more than 0 s; got {self.time_budget_s:g} s")
        if self.device is not None and not any(self.device in real_devices(info) for info in each_backend()):
            *others, last = dict.fromkeys(device for info in all_backends() for device in real_devices(info))
            raise BadInputError(f"--device must be {', '.join(others)} or {last}; got {self.device!r}")
        if self.backend not in (None, *BUILT_IN) and self.backend not in (
            names := [one.name for one in all_backends()]
        ):
            raise BadInputError(f"--backend must be {', '.join(names)}; got {self.backend!r}")
        if self.constants and (self.backend is None or "constants" not in backend_info(self.backend).settings):
            raise BadInputError("--constants are for the simulated device; add --backend sim")
        for path in (self.constants, self.profile):
            if path and not path.exists():
                raise BadInputError(f"there is no file {path}")

    def _check_shapes(self, shapes: Sequence[StepShape]) -> None:
        check_shapes(shapes)
        for name in (*SIZES, "proxy_layers", "profile", "join", "standby"):
            if getattr(self, name):
                flag = f"--{name.replace('_', '-')}"
                why = "gives them" if name in SIZES else "cannot be used with it yet"
                raise BadInputError(f"{flag}: --shapes {why}; leave {flag} out")
        if any(bool(shape.recipe) != bool(self.recipe) for shape in shapes):
            raise BadInputError(
                "--shapes: with --recipe each shape names its own recipe, in a YAML file; see docs/how-to/shapes.md"
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
        return math.inf if self.time_budget_s or self.enough else DEFAULT_TRIALS

    @property
    def enough(self) -> float | None:
        """The share of the baseline step that may be left to gain when the search stops; None if it goes on."""
        return self.until or (CONVERGED_GAIN if self.until_converged else None)

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


def bind_space(
    space: SpaceSpec, layout: Layout, spec: TargetSpec, versions: Mapping[str, str] = MappingProxyType({})
) -> SearchSpace:
    """Bind ``space`` to a layout, with the options that it lists for the backend and device of ``spec``.

    Args:
        space: the space of the request.
        layout: of the opened target.
        spec: the target.
        versions: of a recipe's program, which may lack options that others have.

    Raises:
        SpaceError: the space lists an option that the program's torch_npu lacks.
    """
    info = backend_info(spec.backend)
    known = info.options_for(versions)
    backend, device = info.in_spaces(spec.device)
    listed: Mapping[str, Sequence[Option]] = space.options.get(backend, {}).get(device, {})
    for name, value in ((name, value) for name, values in listed.items() for value in values):
        known.check_searched(spec.device, name, value)
    options = {name: tuple(values) for name, values in listed.items()} or known.default_choices(spec.device)
    unlisted = info.options.rules.defaults.keys() - options.keys()
    of_backend = space.backend_starting_points.get(backend, {})
    points = space.starting_points | {name: point for name, point in of_backend.items() if not unlisted & point.keys()}
    return bind(space.model_copy(update={"starting_points": points}), layout, options, info.options.rules)


def space_spec(request: Request, spec: TargetSpec, preset: Preset | None) -> SpaceSpec:
    """Return the space of a request: from its file, from the preset, or the default.

    Raises:
        SpaceError: the file has no valid space, or lists options that cannot be searched.
        BadInputError: values that may change bits are requested, and the backend has none.
    """
    space = preset.space if preset else SpaceSpec()
    if request.space:
        space = load_space(request.space)
        check_space_options(space)
    if request.try_inexact:
        space = _with_inexact(space, spec)
    if not request.profile:
        return space
    from sktune.profiling import hints

    return hints.with_hot_types(space, request.profile, spec)


def _with_inexact(space: SpaceSpec, spec: TargetSpec) -> SpaceSpec:
    options = backend_info(spec.backend).options
    if not options.bit_changing_values(spec.device):
        raise BadInputError(
            f"--try-inexact adds option values that may change bits, and {spec.backend} has none; leave it out"
        )
    of_backend = space.options.get(spec.backend, {})
    listed = of_backend.get(spec.device) or options.default_choices(spec.device)
    of_device = {spec.device: with_bit_changing(options, listed, spec.device)}
    return space.model_copy(update={"options": {**space.options, spec.backend: {**of_backend, **of_device}}})


def check_space_options(spec: SpaceSpec) -> None:
    """Raise ``SpaceError`` unless every option that the space lists, for any backend, can be searched."""
    known = {info.name: info for info in all_backends()}
    for name in (*spec.options, *spec.backend_starting_points):
        if name not in known:
            raise SpaceError(f"the space names the backend {name!r}{nearest(name, known)}")
        if other := known[name].plans_for:
            raise SpaceError(
                f"the simulation uses the options that the space lists for {other.name}; list options of {name} there"
            )
    for backend, devices in spec.options.items():
        for device, options in devices.items():
            if device not in known[backend].devices:
                raise SpaceError(
                    f"the space has options of {backend} on {device!r}; it runs on {', '.join(known[backend].devices)}"
                )
            for name, values in options.items():
                if not values:
                    raise SpaceError(f"option {name} of the space has no values; list at least one, or leave it out")
                for value in values:
                    known[backend].options.check_searched(device, name, value)
