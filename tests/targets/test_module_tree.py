"""Descriptions of module trees, from which layouts are made, say what torch says of the modules themselves."""

import json

import pytest
import torch
from torch import nn

from sktune.program.sktune_program.module_tree import describe
from sktune.targets.module_tree import ModuleTree


class Shared(nn.Module):
    """Has a module in two places, tied weights, a list that is a subclass, and a child that is None."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        self.second = nn.Module()
        self.second.again = self.first
        self.head = nn.Linear(2, 3, dtype=torch.bfloat16)
        self.tied = nn.Linear(2, 3, bias=False)
        self.tied.weight = self.first[0].weight  # type: ignore[assignment]
        self.register_module("none", None)
        self.experts = type("Experts", (nn.ModuleList,), {})([nn.Linear(1, 1), nn.Linear(1, 1)])


def test_a_description_has_what_torch_iterates_over() -> None:
    """Names, parameters and sizes, of the root and of each subtree."""
    model = Shared()
    tree = ModuleTree(json.loads(json.dumps(describe(model))))
    assert list(tree.modules) == [name for name, _ in model.named_modules()]
    for name, module in model.named_modules():
        number = tree.modules[name]
        assert [path for path, _ in tree.named_modules(number)] == [path for path, _ in module.named_modules()]
        assert list(tree.named_parameters(number)) == [
            (path, tuple(each.shape), str(each.dtype)) for path, each in module.named_parameters()
        ]
        assert tree.size(number) == sum(each.numel() for each in module.parameters())
        assert tree.children(number) == [path for path, _ in module.named_children()]
        assert tree.class_of(number).qualname == type(module).__qualname__
    kinds = {name: tree.class_of(tree.modules[name]).list_kind for name in ("", "first", "experts")}
    assert kinds == {"": "", "first": "sequential", "experts": "list"}


@pytest.mark.parametrize("number", [-1, 3, "x", None])
def test_a_damaged_description_is_none(number: object) -> None:
    """Its errors are those that a damaged report has."""
    damaged = {"classes": [["A", "A", ""]], "parameters": [], "modules": [[0, [["a", number]], []]]}
    with pytest.raises((LookupError, ValueError, TypeError)):
        ModuleTree(damaged)
