"""The options of plans for npugraph_ex. All are of the whole step: its SuperKernels share one set of them.

Source: sk_options_manager.cpp of graph-autofusion (8d0b4fbc) for ranges and defaults, ``NPUGraph._validate_options`` of
torch_npu 2.13.0 for names and types; older releases have fewer (``sktune.ascend.front_ends``). A value out of range is
replaced by the default with a warning there; here it is an error. Strategies that skip the check for deadlocks
(``aggressive_opt_strategies``) and debug options are left out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sktune.ascend.front_ends import FrontEnd, front_end, releases_with
from sktune.backends.options import OptionSpec
from sktune.backends.this_machine import package_version
from sktune.core.errors import PlanError, SpaceError, nearest
from sktune.core.plan import Option, Plan
from sktune.core.space import OptionRules
from sktune.program.sktune_program import npugraph_ex

SUPERKERNEL: Mapping[str, OptionSpec] = {
    "stream_fusion": OptionSpec((1, 0), 1, "cube and vector cores run operators of several streams concurrently"),
    "preload_code": OptionSpec(
        (1, 0, 2), 1, "code preloaded into the cache: 1 the next kernel, 0 as much as it holds, 2 none"
    ),
    "split_mode": OptionSpec((4, 1, 2, 3), 4, "copies of each kernel, so that cores fetch from different addresses"),
    "early_start": OptionSpec((0, 1), 0, "the next operator's prologue overlaps the end of the one before"),
    "constant_codegen": OptionSpec((0, 1), 0, "arguments that do not change become constants in the code"),
    "auto_op_parallel": OptionSpec(
        (0, 1), 0, "cube and vector kernels of different streams alternate, and waits come late"
    ),
}
"""Numbers of ``super_kernel_optimize_options``."""
KERNELS: Mapping[str, str] = {
    "dcci_before_kernel_start": "clean the data cache before these kernels",
    "dcci_after_kernel_end": "clean the data cache after these kernels",
    "dcci_disable_on_kernel": "no cache refresh for these kernels: can give wrong results",
}
"""Lists of ``super_kernel_optimize_options``: patterns of kernel names, joined by commas in a plan."""
_USUAL: Mapping[str, Any] = {"frozen_parameter": True}
_PATTERNS = re.compile(r"[\w.-][\w.*-]*(,[\w.-][\w.*-]*)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """The options of a plan for npugraph_ex; see ``sktune.backends.options.BackendOptions``.

    Args:
        backend: its name, for messages.
        torch_npu: the release that plans are for; by default the installed one.
        is_simulated: whether any release of torch_npu is planned for; else only what the installed one has is taken.
    """

    backend: str
    torch_npu: str = ""
    is_simulated: bool = False

    @property
    def rules(self) -> OptionRules:
        """See ``BackendOptions``."""
        defaults = {**{name: spec.default for name, spec in SUPERKERNEL.items()}, **dict.fromkeys(KERNELS, "")}
        return OptionRules(defaults, of_step=frozenset(defaults), needs_scopes=frozenset(defaults))

    def check_searched(self, device: str, name: str, value: Option) -> None:  # noqa: ARG002 - an NPU has all of them
        """See ``BackendOptions``."""
        if problem := self._problem(name, value):
            raise SpaceError(problem)

    def check_step(self, plan: Plan) -> None:
        """See ``BackendOptions``."""
        for name, value in plan.options:
            if problem := self._problem(name, value):
                raise PlanError(problem)
        for scope in plan.scopes:
            if scope.options:
                raise PlanError(
                    f"{self.backend} has no options of single scopes, got {scope.options[0][0]} of {scope.label}; "
                    "give options of the whole step"
                )

    def default_choices(self, device: str) -> dict[str, tuple[Option, ...]]:  # noqa: ARG002
        """See ``BackendOptions``: lists of kernels keep their defaults."""
        return {name: spec.values for name, spec in SUPERKERNEL.items() if not self._lacking(name)}

    def bit_changing_values(self, device: str) -> Mapping[str, tuple[Option, ...]]:  # noqa: ARG002
        """See ``BackendOptions``: none."""
        return {}

    @property
    def _release(self) -> str:
        return self.torch_npu or package_version("torch_npu")

    def _lacking(self, name: str) -> FrontEnd | None:
        """Return the release's front end if it lacks an option."""
        known = None if self.is_simulated else front_end(self._release)
        return known if known and name not in known.superkernel else None

    def _problem(self, name: str, value: Option) -> str:
        if (name in SUPERKERNEL or name in KERNELS) and (known := self._lacking(name)):
            return (
                f"npugraph_ex of torch_npu {self._release} has no option {name!r}; leave it out "
                f"(there are {', '.join(known.superkernel) or 'none'}), or install torch_npu {releases_with(name)}"
            )
        if name in SUPERKERNEL:
            spec = SUPERKERNEL[name]
            return "" if spec.takes(value) else f"option {name} must be one of {list(spec.values)}, got {value!r}"
        if name in KERNELS:
            is_list = value == "" or (isinstance(value, str) and _PATTERNS.fullmatch(value))
            wanted = "patterns of letters, digits, _ - . and *, joined by commas, none of which begins with *"
            return "" if is_list else f"option {name} must be {wanted}; got {value!r}"
        return f"{self.backend} has no option {name!r}{nearest(name, {**SUPERKERNEL, **KERNELS})}"


OPTIONS = GraphOptions("npugraph-ex")


def compile_options(plan: Plan) -> dict[str, Any]:
    """Return the options of ``torch.compile`` for a plan; see ``sktune_program.npugraph_ex``."""
    return npugraph_ex.compile_options(dict(plan.options), _USUAL, has_scopes=bool(plan.scopes))
