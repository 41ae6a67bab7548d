"""The space of a request: loading it, checking it, and binding it to a layout."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from sktune.backends import all_backends, backend_info
from sktune.backends.options import with_bit_changing
from sktune.core.errors import BadInputError, SpaceError, nearest
from sktune.core.layout import Layout
from sktune.core.plan import Option
from sktune.core.space import SearchSpace, SpaceSpec, bind
from sktune.targets import TargetSpec
from sktune.targets.presets import Preset, load_space
from sktune.tuning.request import Request


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
        SpaceError: the file has no valid space.
        BadInputError: values that may change bits are requested, and the backend has none.
    """
    default = preset.space if preset else SpaceSpec()
    space = load_space(request.space) if request.space else default
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
