"""What both backends for an NPU do in the same way: they compile decode steps with a plan's marks, and run them.

The marks of a plan are attached to the target only while its step is in use.
"""

import logging
import re
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType
from typing import Any

import torch

from sktune.backends.base import Compiled, CompileError, Step
from sktune.core.errors import SktuneError
from sktune.core.layout import Layout
from sktune.core.plan import Plan
from sktune.program.sktune_program import torch_private
from sktune.targets.base import Inputs, Snapshot, Target
from sktune.targets.marks import MakeScope, MarkedModel, attach
from sktune.targets.state import written_by

logger = logging.getLogger(__name__)

_NOISE = re.compile(r"^(Traceback|File |Set TORCH|You can|Use tlparse|from user code|\[ERROR\]|\s*$)")


class MarkedStepBackend:
    """The compiled steps of one target under different plans; see ``sktune.backends.base.Backend``."""

    notes = ""

    def __init__(self, target: Target, layout: Layout, inputs: Inputs) -> None:
        self._target, self._layout, self._inputs = target, layout, inputs
        self._snapshot = Snapshot(target.state)
        for tensor in target.state.values():
            # Frozen parameters and the KV cache keep their addresses.
            torch_private.mark_static_address(tensor)  # as the compilers' documentation requires
        self._active: MarkedModel | None = None
        self._written: Mapping[str, torch.Tensor] | None = None

    def _compiled_step(self, plan: Plan, make_scope: MakeScope, **compiler: Any) -> Step:
        """Compile the marked step and run it once.

        Args:
            plan: whose scopes are marked.
            make_scope: makes the marks.
            compiler: ``backend`` and ``options`` of ``torch.compile``.

        Raises:
            CompileError: the plan does not fit the model, or the compiler rejects it.
        """
        self._activate(None)
        try:
            marks = attach(self._target.module, plan, make_scope)
        except SktuneError as failure:
            raise CompileError(str(failure)) from failure
        marks.suspend()
        run = self._target.decode_step

        def decode_step(*inputs: Any) -> Any:
            return run(*inputs)

        # With a new code object, as Dynamo counts and caches compilations by it.
        function = FunctionType(
            decode_step.__code__.replace(), globals(), decode_step.__name__, None, decode_step.__closure__
        )
        step = Step(torch.compile(function, dynamic=False, fullgraph=True, **compiler), partial(self._activate, marks))
        try:
            self._try(step)
        except Exception as failure:
            marks.detach()
            self._active = None
            raise CompileError(reason(failure)) from failure
        return step

    def references(self) -> dict[str, Callable[[], Compiled]]:
        """See ``Backend.references``: the uncompiled model. The baseline is already what the compiler makes of it."""
        return {"uncompiled": lambda: Compiled(Step(self._target.decode_step, partial(self._activate, None)))}

    def check_machine(self) -> None:
        """See ``Backend.check_machine``: a graph takes long; CANN's logs name the machine."""

    def written(self) -> Mapping[str, torch.Tensor]:
        """See ``Backend.written``: found by running one uncompiled step, as the compilers' graphs do not show them."""
        if self._written is None:

            def run() -> None:
                self._activate(None)
                self._target.decode_step(
                    *(value.clone() if isinstance(value, torch.Tensor) else value for value in self._inputs)
                )

            try:
                with torch.no_grad():
                    self._written = written_by(self._target, run)
            except SktuneError:
                raise
            except Exception:
                logger.warning(
                    "the tensors that the step writes are not known, as it does not run uncompiled", exc_info=True
                )
                self._written = {}
        return self._written

    def _activate(self, marks: MarkedModel | None) -> None:
        """Replace the active plan's marks by those of another compiled plan: Dynamo has guards on them."""
        if self._active is marks:
            return
        if self._active is not None:
            self._active.suspend()
        if marks is not None:
            marks.resume()
        self._active = marks

    def _try(self, step: Step) -> None:
        step.prepare()
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="When enable frozen_parameter")
                step.run(*self._inputs)
        finally:
            self._snapshot.restore()


def reason(failure: BaseException) -> str:
    """Return the compiler's reason in one line: the innermost failure's message, at most 400 characters."""
    # Dynamo stores a backend's failure in an attribute; TorchAir's wrapper drops the text of some, not their context.
    while inner := getattr(failure, "inner_exception", None) or failure.__cause__:
        failure = inner
    lines = _meaningful_lines(failure) or _meaningful_lines(failure.__context__)
    return f"{type(failure).__name__}: {lines[0][:400]}" if lines else type(failure).__name__


def _meaningful_lines(failure: BaseException | None) -> list[str]:
    return [line.strip() for line in str(failure or "").splitlines() if not _NOISE.match(line.strip())]
