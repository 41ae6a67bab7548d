"""What is said of this torch_npu's front ends is what they are."""

from importlib.metadata import version
from typing import Any

import pytest
import torch
import torch_npu
import torchair

from sktune.ascend.front_ends import front_end, front_ends
from tests.torchair import frontend  # noqa: F401 - torchair is loaded, and registers its converters

INSTALLED = front_end(version("torch_npu"))
VALUES: tuple[Any, ...] = (1, [], "", {})
"""One of each type that an option of SuperKernels may have."""


def takes(option: str) -> bool:
    """Return whether npugraph_ex has an option of SuperKernels."""
    for value in VALUES:
        try:
            torch_npu.npu.NPUGraph._validate_options(None, "optimize_options", {option: value})
        except RuntimeError:
            continue
        return True
    return False


def test_the_release_is_listed_as_tested() -> None:
    """Under its own version."""
    assert INSTALLED is not None
    assert (INSTALLED.torch_npu, INSTALLED.is_tested) == (version("torch_npu"), True)


def test_the_options_of_superkernels_are_those_that_it_takes() -> None:
    """Neither more nor fewer, of all that any release has."""
    assert INSTALLED is not None
    every = {option for each in front_ends() for option in each.superkernel}
    assert {option for option in every if takes(option)} == set(INSTALLED.superkernel)


def test_both_front_ends_have_scopes() -> None:
    """None is a scope of TorchAir; npugraph_ex has a pair of operators, and is a backend of ``torch.compile``."""
    assert INSTALLED is not None
    label = dict(torchair.scope.super_kernel(None).attrs)["_super_kernel_scope"]
    assert (label is not None) is INSTALLED.takes_none
    assert hasattr(torch.ops.npu, "super_kernel_scope_begin") and hasattr(torch.ops.npu, "super_kernel_scope_end")
    assert "npugraph_ex" in torch._dynamo.list_backends(exclude_tags=())


@pytest.mark.parametrize("name", sorted({name for each in front_ends() for name in each.unconverted}))
def test_operators_are_converted_where_it_says_so(name: str) -> None:
    """A converter that only raises is none."""
    assert INSTALLED is not None
    operator: Any = torch.ops
    for part in name.split("."):
        operator = getattr(operator, part)
    only_raises = operator._ge_converter.__wrapped__.__code__.co_names == ("NotImplementedError",)
    assert only_raises is (name in INSTALLED.unconverted)
