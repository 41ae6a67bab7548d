"""Why a decode step cannot be captured as one graph, in one line, with the place in the model's code."""

from pathlib import Path

from sktune.core.errors import SktuneError, TargetError, described
from sktune.program.sktune_program.torch_private import BackendCompilerFailed

_ADVICE = "Consider annotating your code using torch._check*(). "
"""Before the reason, in Dynamo's messages about values that a graph cannot know."""


def capture_failure(failure: Exception) -> SktuneError:
    """Return the error for a failed capture; what was raised while the graph was received stays as it is."""
    if isinstance(failure, BackendCompilerFailed):
        failure = failure.inner_exception
    if isinstance(failure, SktuneError):
        return failure
    reason = described(failure).replace(_ADVICE, "").rstrip(".")
    return TargetError(
        f"the decode step cannot be captured as one graph: {reason}{_place(failure)}; "
        "remove data-dependent control flow from it"
    )


def _place(failure: Exception) -> str:
    """Return the last line of the model's code that was traced, if Dynamo names one."""
    frames = getattr(failure, "real_stack", None)
    return f", at {Path(frames[-1].filename).name}:{frames[-1].lineno} ({frames[-1].line})" if frames else ""
