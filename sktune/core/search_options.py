"""The options of a search, one row each: the command line, lists of models, agents' tools and Python take theirs here.

An option is a field of ``SearchOptions``. Its annotation has the type of its value and a row of the class ``Opt``.
"""

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from enum import StrEnum
from functools import cache, partial
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from sktune.core.errors import BadInputError
from sktune.core.shapes import StepShape, parse_shapes
from sktune.core.verification import DEFAULT_VERIFY_STEPS

MODELS = "A preset (deepseek-v3, llama, qwen3, qwen3-moe), a folder with config.json, or path/to/file.py:function."
ENGINES = ("local", "ray")
OBJECTIVES = ("sum", "worst")
DTYPES = ("bfloat16", "float16", "float32")

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def parse_duration(text: str) -> float:
    """Return the seconds of ``90s``, ``3m``, ``1h`` or ``1h30m``.

    Raises:
        BadInputError: it is not a duration, or zero.
    """
    match = _DURATION.fullmatch(text.strip())
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total_s = 3600.0 * hours + 60.0 * minutes + seconds
    if not total_s:
        raise BadInputError(f"--time-budget must be a time such as 90s, 3m, 1h or 1h30m; got {text!r}")
    return total_s


def parse_share(text: str, flag: str = "--until") -> float:
    """Return the number of ``1%`` or ``0.01``, a share of the step.

    Raises:
        BadInputError: it is neither, or not between 0 and 1.
    """
    number = text.strip()
    try:
        share = float(number.removesuffix("%")) / (100.0 if number.endswith("%") else 1.0)
    except ValueError:
        share = math.nan
    if not 0.0 < share < 1.0:
        raise BadInputError(f"{flag} must be a share of the step such as 1%; got {text!r}")
    return share


class Group(StrEnum):
    """The groups of options that ``--help`` and the reference show."""

    MODEL = "What to tune"
    SEARCH = "How to search"
    PLACE = "Where to run"
    OUTPUT = "Output"


@dataclass(frozen=True, slots=True)
class Opt:
    """The row of an option, which stands in the annotation of its field; ``options_of`` adds what the field says.

    Attributes:
        help: the text that ``--help``, the reference and agents show.
        group: the group in which they show it.
        alias: another name on the command line.
        choices: the only values that are allowed; empty if other code decides that.
        at_least: the least number that is allowed.
        counts: what the number counts, for the message about a smaller one.
        more_than_s: the time in seconds that a finite value must be longer than.
        parse: returns the field's value for the text that users give; None if they give the value itself.
        is_of_program: whether a recipe's program decides it, so that it cannot be given with ``--recipe``.
        in_lists: whether a list of models can set it for each of its searches.
        for_agents: whether agents can set it when they start a search.
        name: the field's name without the unit; on the command line with dashes.
        field: the field's name.
        kind: the type of the value that users give.
        default: the field's default; None for an option that is parsed from a text, or given several times.
    """

    help: str
    group: Group
    alias: str | None = None
    choices: tuple[str, ...] = ()
    at_least: int | None = None
    counts: str = ""
    more_than_s: float | None = None
    parse: Callable[[str], Any] | None = None
    is_of_program: bool = False
    in_lists: bool = True
    for_agents: bool = True
    name: str = ""
    field: str = ""
    kind: Any = str
    default: Any = None

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def value_type(self) -> type:
        """The type of the value that users give, if they give one."""
        value_type: type = next(kind for kind in (*get_args(self.kind), self.kind) if kind is not NoneType)
        return value_type

    def check(self, value: Any) -> None:
        """Raise ``BadInputError`` if the row does not allow a value."""
        if value is None:
            return
        if self.choices and value not in self.choices:
            *others, last = self.choices
            raise BadInputError(f"{self.flag} must be {', '.join(others)} or {last}; got {value!r}")
        is_number = isinstance(value, Integral if self.value_type is int else Real) and not isinstance(value, bool)
        if self.at_least is not None and not is_number:
            raise BadInputError(f"{self.flag} must be a {'whole ' * (self.value_type is int)}number; got {value!r}")
        if self.at_least is not None and value < self.at_least:
            counted = self.counts and f", {self.counts}"
            raise BadInputError(f"{self.flag} must be at least {self.at_least}{counted}; got {value}")
        if self.more_than_s is not None and not self.more_than_s < value < math.inf:
            raise BadInputError(
                f"{self.flag} must be a number of seconds, more than {self.more_than_s:g}; got {value:g}"
            )


@cache
def options_of(kind: Any) -> Mapping[str, Opt]:
    """Return the options among the fields of a dataclass, by name and in order."""
    hints = get_type_hints(kind, include_extras=True)
    options = {}
    for field in fields(kind):
        if get_origin(hints[field.name]) is Annotated:
            value_kind, row = get_args(hints[field.name])
            name = field.name.removesuffix("_s")
            given: dict[str, Any] = {"kind": value_kind, "default": field.default}
            if row.parse:
                given = {"kind": str | None}
            elif get_origin(value_kind) is tuple:
                given = {"kind": list[str] | None}
            options[name] = replace(row, name=name, field=field.name, **given)
    return options


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search; a path may be given as a string.

    Raises:
        BadInputError: a row does not allow a value.
    """

    model: Annotated[str, Opt(f"{MODELS} Or give --recipe.", Group.MODEL)] = ""
    _: KW_ONLY
    recipe: Annotated[
        Path | None,
        Opt("A recipe.yaml: a program to start for each plan; see docs/reference/recipe.md.", Group.MODEL,
            in_lists=False),
    ] = None  # fmt: skip
    scale: Annotated[
        str | None,
        Opt("tiny, small or full; by default tiny on CPU and sim, small on CUDA and NPU.", Group.MODEL,
            is_of_program=True),
    ] = None  # fmt: skip
    weights: Annotated[
        Path | None,
        Opt("A checkpoint's folder (safetensors), or random; by default the model folder's own, else random.",
            Group.MODEL, is_of_program=True),
    ] = None  # fmt: skip
    trust: Annotated[
        bool, Opt("Run the code in the model's folder (auto_map in its config.json); read it first.", Group.MODEL)
    ] = False
    dtype: Annotated[
        str | None,
        Opt("bfloat16 (default), float16 or float32.", Group.MODEL, choices=DTYPES, is_of_program=True),
    ] = None
    batch: Annotated[int | None, Opt("Sequences decoded together.", Group.MODEL, at_least=1, is_of_program=True)] = None
    context: Annotated[
        int | None,
        Opt("Tokens in the KV cache before the first step.", Group.MODEL, at_least=1, is_of_program=True),
    ] = None
    shapes: Annotated[
        tuple[StepShape, ...] | None,
        Opt('Several shapes: "batch=1,8 context=1024,8192", or a YAML with their weights; see docs/how-to/shapes.md.',
            Group.MODEL, parse=parse_shapes, in_lists=False),
    ] = None  # fmt: skip
    objective: Annotated[
        str,
        Opt("The single plan for all shapes has the least sum of weighted step latencies, or the least of the worst "
            "regrets: sum or worst.", Group.MODEL, choices=OBJECTIVES, in_lists=False),
    ] = "sum"  # fmt: skip
    regret: Annotated[
        float | None,
        Opt("What the fewest plans for all shapes may lose at each of them to its best one: 1% by default.",
            Group.MODEL, parse=partial(parse_share, flag="--regret"), in_lists=False),
    ] = None  # fmt: skip
    trials: Annotated[
        int | None,
        Opt("Total number of trials of the study; by default 40, or no limit with --time-budget, --until or "
            "--until-converged.", Group.SEARCH,
            at_least=1, counts="the total number of trials"),
    ] = None  # fmt: skip
    time_budget_s: Annotated[
        float | None,
        Opt("Maximum time for this call, everything included: 90s, 3m, 1h, 1h30m.", Group.SEARCH,
            parse=parse_duration),
    ] = None  # fmt: skip
    until: Annotated[
        float | None,
        Opt("Stop when with 95% probability no plan saves more than this share of the step, or than the noise floor, "
            "beyond the best: 1%.", Group.SEARCH, parse=parse_share),
    ] = None  # fmt: skip
    until_converged: Annotated[bool, Opt("The same as --until 0.5%.", Group.SEARCH)] = False
    strategy: Annotated[
        str,
        Opt("partition, tpe, gp, random, grid, bottom-up, top-down, profile, or module:function.", Group.SEARCH,
            alias="--sampler"),
    ] = "partition"  # fmt: skip
    space: Annotated[Path | None, Opt("A YAML file with your own search space.", Group.SEARCH)] = None
    try_inexact: Annotated[
        bool,
        Opt("Also search option values that may change bits; see docs/explanation/exactness.md.", Group.SEARCH,
            for_agents=False),
    ] = False  # fmt: skip
    learn_from: Annotated[
        tuple[str, ...],
        Opt("A study whose findings are a prior here, or auto for up to four that share units; repeatable.",
            Group.SEARCH),
    ] = ()  # fmt: skip
    proxy_layers: Annotated[
        int | None,
        Opt("Search a model with this many layers of each kind first, then learn from it in five trials.", Group.SEARCH,
            at_least=1, is_of_program=True),
    ] = None  # fmt: skip
    profile: Annotated[
        Path | None,
        Opt("A profile of the baseline: it orders the starting points; sim uses its kernel times.", Group.SEARCH,
            is_of_program=True),
    ] = None  # fmt: skip
    compile_timeout_s: Annotated[float, Opt("Maximum seconds for one compile.", Group.SEARCH, more_than_s=0)] = 300.0
    verify_steps: Annotated[
        int,
        Opt("Decode steps on which the winner is compared with the baseline, bit for bit. "
            "By default 256 suffice if it is exact by construction.", Group.SEARCH, at_least=1, for_agents=False),
    ] = DEFAULT_VERIFY_STEPS  # fmt: skip
    seed: Annotated[int, Opt("Seed of weights, inputs and proposals.", Group.SEARCH)] = 0
    backend: Annotated[
        str | None,
        Opt("inductor, npu, npugraph-ex, sim or sim-npugraph-ex; by default npu on the device npu, else inductor.",
            Group.PLACE, is_of_program=True),
    ] = None  # fmt: skip
    device: Annotated[
        str | None,
        Opt("cpu, cuda or npu; by default the backend's first.", Group.PLACE, is_of_program=True),
    ] = None
    constants: Annotated[
        Path | None,
        Opt("Constants of the simulated device, from `sktune calibrate`.", Group.PLACE, is_of_program=True),
    ] = None
    workers: Annotated[
        int | None,
        Opt("Trials to run at the same time, each on a die of its own; by default 1, on Ray all dies.", Group.PLACE,
            at_least=1, in_lists=False),
    ] = None  # fmt: skip
    engine: Annotated[
        str,
        Opt("local for workers on this host, or ray for those of a Ray cluster.", Group.PLACE, choices=ENGINES,
            in_lists=False),
    ] = "local"  # fmt: skip
    address: Annotated[
        str | None, Opt("Of the Ray cluster; by default the one on this host.", Group.PLACE, in_lists=False)
    ] = None
    join: Annotated[
        bool,
        Opt("Work on a study of --storage that another search is running.", Group.PLACE,
            in_lists=False, for_agents=False),
    ] = False  # fmt: skip
    take_over: Annotated[
        bool,
        Opt("Assume that a search on another host that holds the study has ended.", Group.PLACE,
            in_lists=False, for_agents=False),
    ] = False  # fmt: skip
    standby: Annotated[
        bool,
        Opt("Wait until no other search runs the study, and go on with it then.", Group.PLACE,
            in_lists=False, for_agents=False),
    ] = False  # fmt: skip
    study: Annotated[
        str | None, Opt("Name of the study; by default made of model, backend and device.", Group.OUTPUT)
    ] = None
    storage: Annotated[
        str | None,
        Opt("URL of an Optuna storage; sqlite in the study's folder by default.", Group.OUTPUT,
            in_lists=False, for_agents=False),
    ] = None  # fmt: skip
    runs: Annotated[Path, Opt("Folder that holds the studies.", Group.OUTPUT, in_lists=False, for_agents=False)] = Path(
        "runs"
    )

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for option in options_of(kind).values():
            value = getattr(self, option.field)
            if option.value_type is Path and isinstance(value, str):
                object.__setattr__(self, option.field, Path(value))
            if option.parse and isinstance(value, str):
                object.__setattr__(self, option.field, value := option.parse(value))
            if option.value_type == list[str]:
                object.__setattr__(self, option.field, (value,) if isinstance(value, str) else tuple(value))
            if self.recipe and option.is_of_program and value is not None:
                raise BadInputError(
                    f"{option.flag} cannot be used with --recipe, whose program decides it; leave it out"
                )
            option.check(value)


OPTIONS: Mapping[str, Opt] = options_of(SearchOptions)


def fields_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of ``SearchOptions`` from what users give as options, by name; None is an option left out."""
    values = {}
    for name, value in given.items():
        if value is not None:
            option = OPTIONS[name]
            given_again = tuple(value) if isinstance(value, list) else value
            values[option.field] = option.parse(value) if option.parse else given_again
    return values


Taking = TypeVar("Taking", bound=Callable[..., Any])


def taking(parameters: Sequence[inspect.Parameter]) -> Callable[[Taking], Taking]:
    """Return a decorator that shows ``parameters`` in the signature of a function in the place of its ``**given``.

    A parameter of the same name that the function has itself takes the place of one of these; its other ones stay where
    they are if they are positional, and come last if not.
    """
    names = [parameter.name for parameter in parameters]

    def decorate(function: Taking) -> Taking:
        signature = inspect.signature(function)
        own = {name: one for name, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD}
        rest = [one for name, one in own.items() if name not in names]
        first = [one for one in rest if one.kind is not one.KEYWORD_ONLY]
        shown = [own.get(one.name, one) for one in parameters]
        last = [one for one in rest if one.kind is one.KEYWORD_ONLY]
        function.__dict__["__signature__"] = signature.replace(parameters=[*first, *shown, *last])
        return function

    return decorate
