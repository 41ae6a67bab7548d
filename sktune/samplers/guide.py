"""The scope guide's three procedures, implemented literally, for comparison with samplers.

Source: "Scope 分析方法" in scope-analysis-guide.md of the skill model-infer-superkernel (hicann/cannbot-skills). The
guide defines which scopes come first, when to widen and when to narrow. It does not say when to try options: here they
follow the scopes, one at a time, and a value is kept if it is faster.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter

from optuna.samplers import BaseSampler

from sktune.core.plan import Option
from sktune.core.space import (
    JOIN,
    LAYERS_PER_SCOPE,
    NEW,
    OUT,
    SearchSpace,
    Values,
    is_attention,
    is_feed_forward,
    limit_of,
)
from sktune.samplers.procedure import PlanAnswer, Procedure, ProcedureSampler
from sktune.study.strategy import Strategy

Step = Generator[Values, PlanAnswer, PlanAnswer]


def _strategy(name: str, procedure: Callable[[SearchSpace], Procedure]) -> Strategy:
    def make(space: SearchSpace, seed: int) -> BaseSampler:  # noqa: ARG001 - nothing is random
        return ProcedureSampler(space, procedure)

    return Strategy(name, make, starts_alone=True)


class _Best:
    """The fastest point so far."""

    def __init__(self, point: Values) -> None:
        self.point, self.answer = point, PlanAnswer()

    def keep_if_faster(self, point: Values) -> Step:
        """Ask for ``point``, keep it if it passes and is faster, and return the answer."""
        answer = yield point
        if answer.is_complete and answer.latency_ms < self.answer.latency_ms:
            self.point, self.answer = point, answer
        return answer


def _bottom_up(space: SearchSpace) -> Procedure:
    """The smallest scopes, then all of them together, then wider and wider scopes while they pass."""
    best = _Best(space.simplest)
    passed: list[tuple[float, Values]] = []
    for module in _modules(space):
        answer = yield from best.keep_if_faster({**_narrow(space), **module})
        if answer.is_complete:
            passed.append((answer.latency_ms, module))
    for _, module in sorted(passed, key=itemgetter(0))[1:]:
        yield from best.keep_if_faster({**best.point, **module})
    for point in _widening(space):
        answer = yield from best.keep_if_faster(point)
        if answer.has_failed:
            break  # wider scopes contain the failed one
    yield from _options(space, best)
    return best.point


def _top_down(space: SearchSpace) -> Procedure:
    """Narrower and narrower scopes until narrowing no longer helps; if all fail, without the blamed units."""
    best = _Best(_narrow(space))
    answer, point = PlanAnswer(), best.point
    for point in reversed(list(_widening(space))):
        answer = yield from best.keep_if_faster(point)
        if answer.is_complete and best.point is not point:
            break
    if not best.answer.is_complete:
        yield from _without_the_blamed(space, best, point, answer)
    yield from _options(space, best)
    return best.point


def _by_profile(space: SearchSpace) -> Procedure:
    """The hottest unit first; each joins the scope of its neighbour if that is already kept."""
    best = _Best(_narrow(space))
    shares = dict.fromkeys(_unit_parameters(space), 0.0)
    for unit in space.layout.units:
        shares[space.parameter(unit)] += unit.time_share
    for name in sorted(shares, key=shares.__getitem__, reverse=True):
        yield from best.keep_if_faster({**best.point, name: JOIN})
    for limit in _limits(space)[1:]:
        yield from best.keep_if_faster({**best.point, LAYERS_PER_SCOPE: limit})
    yield from _options(space, best)
    return best.point


def _options(space: SearchSpace, best: _Best) -> Generator[Values, PlanAnswer, None]:
    for name in space.option_names:
        for value in space.choices[name]:
            if value != best.point[name]:
                yield from best.keep_if_faster({**best.point, name: value})


def _without_the_blamed(
    space: SearchSpace, best: _Best, widest: Values, answer: PlanAnswer
) -> Generator[Values, PlanAnswer, None]:
    """Leave out the blamed scope of the failed point ``widest``, then add back those of its parts that pass.

    If no scope is blamed, every layer kind is a suspect.
    """
    suspects = _blamed(space, widest, answer.blamed) or _unit_parameters(space)
    innocent = {**widest, **dict.fromkeys(suspects, OUT)}
    if any(innocent[name] != OUT for name in _unit_parameters(space)):
        yield from best.keep_if_faster(innocent)
    groups: dict[str, list[str]] = {}
    for name, unit in {space.parameter(unit): unit for unit in space.layout.units}.items():
        if name in suspects:
            groups.setdefault(name.removesuffix(f".{unit.key}"), []).append(name)
    yield from _bisect(best, list(groups.values()))


def _bisect(best: _Best, groups: Sequence[Sequence[str]]) -> Generator[Values, PlanAnswer, None]:
    """Add ``groups`` of units to the best point: all together, or else those of their halves that pass and are faster.

    Groups are split at layers first, then at units.
    """
    names = list(chain.from_iterable(groups))
    if not names:
        return
    part: Values = {**dict.fromkeys(names, JOIN), names[0]: NEW}
    point = {**best.point, **part}
    yield from best.keep_if_faster(point)
    if best.point is point or len(names) == 1:
        return
    if len(groups) == 1:
        groups = [[name] for name in names]
    middle = len(groups) // 2
    yield from _bisect(best, groups[:middle])
    yield from _bisect(best, groups[middle:])


def _blamed(space: SearchSpace, point: Values, label: str) -> list[str]:
    """Return the parameters of the units in the scope with ``label``; empty if there is no such scope."""
    position = {unit.name: index for index, unit in enumerate(space.layout.units)}
    for scope in space.plan(point).scopes:
        if scope.label == label:
            units = space.layout.units[position[scope.first] : position[scope.last] + 1]
            return list(dict.fromkeys(space.parameter(unit) for unit in units))
    return []


def _modules(space: SearchSpace) -> list[Values]:
    """Return the smallest scopes: attention only, MoE only, FFN only; if names do not reveal these, single units."""
    roles: tuple[Callable[[str, str], bool], ...] = (
        lambda kind, key: is_attention(key),
        lambda kind, key: is_feed_forward(key) and kind.startswith("moe"),
        lambda kind, key: is_feed_forward(key) and not kind.startswith("moe"),
    )
    named = [module for role in roles if (module := _module(space, role))]
    return named or [{name: NEW} for name in _unit_parameters(space)]


def _module(space: SearchSpace, role: Callable[[str, str], bool]) -> Values:
    """Return the point of the units with ``role`` (by layer kind and key), adjacent ones in one scope."""
    values: dict[str, Option] = {}
    before: int | None = None
    for unit in space.layout.units:
        if unit.layer is not None and role(space.layout.layers[unit.layer].kind, unit.key):
            values.setdefault(space.parameter(unit), JOIN if before == unit.layer else NEW)
            before = unit.layer
        else:
            before = None
    return values


def _widening(space: SearchSpace) -> Iterator[Values]:
    """Yield scopes over one layer, over several layers, over all layers, and over the whole step."""
    in_layers = [space.parameter(unit) for unit in space.layout.units if unit.layer is not None]
    limits: Sequence[Mapping[str, Option]] = [{LAYERS_PER_SCOPE: limit} for limit in _limits(space)] or [{}]
    if in_layers:
        for limit in limits:
            yield {**space.simplest, **dict.fromkeys(in_layers, JOIN), **limit}
    if len(in_layers) < len(space.layout.units):
        yield {**space.simplest, **dict.fromkeys(_unit_parameters(space), JOIN), **limits[-1]}


def _narrow(space: SearchSpace) -> Values:
    """Return the point without scopes and with the narrowest limit of layers."""
    limits = _limits(space)
    return {**space.simplest, **({LAYERS_PER_SCOPE: limits[0]} if limits else {})}


def _limits(space: SearchSpace) -> list[Option]:
    """Return the choices for how many layers a scope may span, the narrowest first."""
    return sorted(space.choices.get(LAYERS_PER_SCOPE, ()), key=limit_of)


def _unit_parameters(space: SearchSpace) -> list[str]:
    return list(dict.fromkeys(space.parameter(unit) for unit in space.layout.units))


BOTTOM_UP = _strategy("bottom-up", _bottom_up)
"""Begins with attention alone and MoE alone, and widens scopes that pass."""
TOP_DOWN = _strategy("top-down", _top_down)
"""Begins with the widest scope, and narrows it if it fails or is slow."""
PROFILE = _strategy("profile", _by_profile)
"""Puts units into scopes by decreasing share of the step's time."""
