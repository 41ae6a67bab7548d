"""The space that a request asks for: found, checked, and bound to what was traced."""

from collections.abc import Mapping, Sequence

from sktune.backends import BACKENDS, DEVICES
from sktune.backends.options import check_searched, default_choices, option_rules, with_inexact
from sktune.core.errors import BadInputError, SpaceError, nearest
from sktune.core.layout import Layout
from sktune.core.plan import Option
from sktune.core.space import SearchSpace, SpaceSpec, bind
from sktune.targets import TargetSpec
from sktune.targets.presets import Preset, load_space
from sktune.tuning import profile_hints as profile_prior
from sktune.tuning.request import Request


def bind_space(wanted: SpaceSpec, layout: Layout, spec: TargetSpec) -> SearchSpace:
    """Bind ``wanted`` to a layout, with the options that it lists for the backend and device of ``spec``."""
    # The simulation plans for an NPU.
    backend, device = ("npu", "npu") if spec.backend == "sim" else (spec.backend, spec.device)
    chosen: Mapping[str, Sequence[Option]] = wanted.options.get(backend, {}).get(device, {})
    options = {name: tuple(values) for name, values in chosen.items()} or default_choices(spec.backend, spec.device)
    points = {**wanted.starting_points, **wanted.backend_starting_points.get(backend, {})}
    return bind(wanted.model_copy(update={"starting_points": points}), layout, options, option_rules(spec.backend))


def space_spec(request: Request, spec: TargetSpec, preset: Preset | None) -> SpaceSpec:
    """Return the space that a request asks for: its file's, the preset's, or the default.

    Raises:
        SpaceError: no space.
        BadInputError: values that may change bits are asked for where there are none.
    """
    given = preset.space if preset else SpaceSpec()
    space = load_space(request.space) if request.space else given
    if request.try_inexact:
        space = _with_inexact(space, spec)
    # The simulation knows no data caches.
    is_npu = request.backend == "npu" or (request.backend is None and request.device == "npu")
    return profile_prior.with_hot_types(space, request.profile) if request.profile and is_npu else space


def _with_inexact(space: SpaceSpec, spec: TargetSpec) -> SpaceSpec:
    if spec.backend != "inductor":
        raise BadInputError(
            f"--try-inexact adds values of Inductor's options, and {spec.backend} has none that may change bits; "
            "leave it out"
        )
    of_backend = space.options.get(spec.backend, {})
    listed = of_backend.get(spec.device) or default_choices(spec.backend, spec.device)
    of_device = {spec.device: with_inexact(listed, spec.device)}
    return space.model_copy(update={"options": {**space.options, spec.backend: {**of_backend, **of_device}}})


def check_space_options(spec: SpaceSpec) -> None:
    """Raise ``SpaceError`` unless every option that the space lists, for whatever backend, can be searched."""
    if "sim" in (*spec.options, *spec.backend_starting_points):
        raise SpaceError("the simulation takes what the space lists for npu; list options of sim there")
    for backend in (*spec.options, *spec.backend_starting_points):
        if backend not in BACKENDS:
            raise SpaceError(f"the space names the backend {backend!r}{nearest(backend, BACKENDS)}")
    for backend, devices in spec.options.items():
        for device, options in devices.items():
            if device not in DEVICES[backend]:
                raise SpaceError(
                    f"the space has options of {backend} on {device!r}; it runs on {', '.join(DEVICES[backend])}"
                )
            for name, values in options.items():
                if not values:
                    raise SpaceError(f"option {name} of the space has no value; list at least one, or leave it out")
                for value in values:
                    check_searched(backend, device, name, value)
