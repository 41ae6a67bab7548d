"""Scopes of plans on models in this process.

How marks are attached, and what they are, is on the side of programs (``sktune_program.marks``, and for Inductor
``sktune_program.inductor.marks``).
"""

from collections.abc import Mapping
from types import MappingProxyType

from torch import nn

from sktune.core.delivery import ExpectedCode
from sktune.core.plan import Plan
from sktune.core.scope_flavour import ScopeFlavour
from sktune.program.sktune_program import marks
from sktune.program.sktune_program.inductor.marks import InductorScope as InductorScope
from sktune.program.sktune_program.marks import HookedScope as HookedScope
from sktune.program.sktune_program.marks import MakeScope as MakeScope
from sktune.program.sktune_program.marks import MarkedModel as MarkedModel
from sktune.program.sktune_program.marks import npugraph_ex_scope as npugraph_ex_scope
from sktune.program.sktune_program.marks import torchair_scope as torchair_scope


def scope_maker(flavour: ScopeFlavour, code: Mapping[str, ExpectedCode] = MappingProxyType({})) -> MakeScope:
    """Return the function that makes scopes of a flavour.

    Args:
        flavour: of the scopes.
        code: the code that scopes should compile to, by label; for Inductor only.
    """
    if flavour is ScopeFlavour.SUPERKERNEL:
        return torchair_scope
    if flavour is ScopeFlavour.CAPTURED:
        return npugraph_ex_scope
    return lambda label, options: InductorScope(label, options, code.get(label))


def attach(module: nn.Module, plan: Plan, make_scope: MakeScope = InductorScope) -> MarkedModel:
    """Mark the scopes of ``plan`` on ``module``; see ``sktune_program.marks.attach``."""
    return marks.attach(module, plan.marked, make_scope)


def attach_each(module: nn.Module, names: tuple[str, ...]) -> MarkedModel:
    """Mark each of the named modules as a separate span."""
    modules = dict(module.named_modules())
    marked = MarkedModel()
    for name in names:
        marked.mark(modules[name], modules[name], InductorScope(name, {}))
    return marked
