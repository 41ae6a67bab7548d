"""The options of plans for an NPU: those of SuperKernel scopes, and TorchAir's for the whole step.

The former are in ``sktune.core.scope_options``, since plan files and source code also need them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sktune.backends.options import OptionSpec
from sktune.core import scope_options
from sktune.core.errors import PlanError, SpaceError, nearest
from sktune.core.plan import Option, Plan
from sktune.core.scope_options import SUPERKERNEL_OPTIONS
from sktune.core.space import OptionRules

_SORTING = "topology_sorting_strategy"
TORCHAIR: Mapping[str, OptionSpec] = {
    "frozen_parameter": OptionSpec((True, False), True, "weights keep their addresses: less work on the host"),
    "tiling_schedule_optimize": OptionSpec(
        (True, False), True, "tiling on the device; operators that need it can only be fused with it"
    ),
    _SORTING: OptionSpec(
        ("StableRDFS", "DFS", "RDFS", "BFS"), "StableRDFS", "order of operators, and thus which are in a scope"
    ),
}
"""TorchAir's options of the whole step (TorchAir, CompilerConfig). The baseline also has the defaults."""


@dataclass(frozen=True, slots=True)
class SuperKernelOptions:
    """The options of a plan for an NPU; see ``sktune.backends.options.BackendOptions``.

    Args:
        backend: its name, for messages.
    """

    backend: str

    @property
    def rules(self) -> OptionRules:
        """See ``BackendOptions``."""
        of_step = {name: spec.default for name, spec in TORCHAIR.items()}
        defaults = {**scope_options.option_defaults(), **of_step}
        return OptionRules(defaults, frozenset(TORCHAIR), normalise=scope_options.normalise)

    def check_searched(self, device: str, name: str, value: Option) -> None:  # noqa: ARG002 - an NPU has all of them
        """See ``BackendOptions``.

        Options that rescue from a hang, probe or diagnose are set only by sktune, or by the user in a plan.
        """
        if name in TORCHAIR:
            if not TORCHAIR[name].takes(value):
                raise SpaceError(f"option {name} must be one of {list(TORCHAIR[name].values)}, got {value!r}")
            return
        scope_options.check_option(name, value)
        if value != "" and SUPERKERNEL_OPTIONS[name].role != "searched":
            raise SpaceError(f"option {name} is for {SUPERKERNEL_OPTIONS[name].role}, not for a search; leave it out")

    def check_step(self, plan: Plan) -> None:
        """See ``BackendOptions``."""
        for name, value in plan.options:
            if name not in TORCHAIR:
                raise PlanError(f"{self.backend} has no option {name!r} of the whole step{nearest(name, TORCHAIR)}")
            if value not in TORCHAIR[name].values:
                raise PlanError(f"option {name} must be one of {list(TORCHAIR[name].values)}, got {value!r}")

    def default_choices(self, device: str) -> dict[str, tuple[Option, ...]]:  # noqa: ARG002
        """See ``BackendOptions``: TorchAir's options keep their defaults."""
        return {
            name: option.choices for name, option in SUPERKERNEL_OPTIONS.items()
            if option.role == "searched" and len(option.choices) > 1 and name != "func-align"
        }  # fmt: skip

    def bit_changing_values(self, device: str) -> Mapping[str, tuple[Option, ...]]:  # noqa: ARG002
        """See ``BackendOptions``: none."""
        return {}


OPTIONS = SuperKernelOptions("npu")


def keeps_order(plan: Plan) -> bool:
    """Return whether GE keeps the order of TorchAir's operators under a plan."""
    return {**OPTIONS.rules.defaults, **dict(plan.options)}[_SORTING] == "StableRDFS"
