"""The helpers of the recipes; without TorchAir, they only record what is entered."""

from contextlib import contextmanager

entered = []
"""What was entered since the list was cleared: kind, and label or argument."""


@contextmanager
def _entered(enable, *what):
    if enable:
        entered.append(("enter", *what))
    yield
    if enable:
        entered.append(("leave", *what))


def superkernel_scope(enable: bool, scope: str, options: str = ""):
    """Mark a scope."""
    return _entered(enable, "scope", scope, options)


def npu_stream_switch(enable: bool, tag: str):
    """Switch the stream."""
    return _entered(enable, "stream", tag)


def limit_core_num(enable: bool, aic: str, aiv: str):
    """Limit the cores."""
    return _entered(enable, "cores", aic, aiv)
