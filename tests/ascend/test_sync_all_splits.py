"""Where newer versions of GE split a SuperKernel because of SyncAll; the expected splits were worked out by hand."""

import pytest

from sktune.ascend.superkernel_parts import KernelType, SubKernel
from sktune.ascend.superkernel_pass import Cut, GraphNode, PassCut, group
from sktune.ascend.sync_all_splits import sync_all_splits


def aic(blocks: int) -> SubKernel:
    """Return a cube kernel."""
    return SubKernel(KernelType.AIC_ONLY, blocks)


def aiv(blocks: int) -> SubKernel:
    """Return a vector kernel."""
    return SubKernel(KernelType.AIV_ONLY, blocks)


def mix(blocks: int) -> SubKernel:
    """Return a kernel with two AIV for each AIC."""
    return SubKernel(KernelType.MIX_AIC_1_2, blocks)


def syncing(kernel: SubKernel) -> SubKernel:
    """Return the kernel with a SyncAll."""
    return SubKernel(kernel.kernel_type, kernel.blocks, calls_sync_all=True)


@pytest.mark.parametrize(
    ("kernels", "splits"),
    [
        ([aiv(48), aiv(8)], ()),
        ([aiv(48), syncing(aiv(48)), aiv(8)], ()),
        ([aiv(48), syncing(aiv(8))], (1,)),  # fewer cores than those before
        ([syncing(aiv(8)), aiv(8), aiv(48)], (2,)),  # a later kernel needs more cores
        ([syncing(aiv(8)), syncing(aiv(16)), syncing(aiv(8))], (1, 2)),
        ([aiv(48), syncing(aiv(8)), aiv(4), aiv(48)], (1, 3)),
        ([syncing(aic(24)), aiv(48)], ()),  # with 48 AIV there are 24 AIC in any case
        ([syncing(aic(8)), aiv(48)], (1,)),
        ([syncing(aic(24)), syncing(aiv(48)), mix(24)], ()),
        ([syncing(aiv(18)), aic(10)], ()),  # as 18 AIC with one AIV each
        ([syncing(aiv(18)), aic(10), mix(1)], (2,)),  # which the MIX kernel does not allow
        ([mix(24), syncing(mix(12))], (1,)),
    ],
)
def test_a_superkernel_is_split_where_no_number_of_cores_suits_its_sync_alls(
    kernels: list[SubKernel], splits: tuple[int, ...]
) -> None:
    """A kernel with SyncAll needs exactly its own cores; all others need at least theirs."""
    assert sync_all_splits(kernels) == splits


def test_the_operator_at_a_split_begins_the_next_superkernel() -> None:
    """GE names the parts after the scope, and lists the place with its rule."""
    nodes = [GraphNode(name, "Mul", "" if name == "x" else "a") for name in "xpqrsy"]
    nodes[-1] = GraphNode("y", "Cast", "", is_supported=False)
    grouping = group(nodes, lambda inside: [inside[2]])
    assert [(each.scope, each.nodes) for each in grouping.groups] == [("a_split_0_3", (1, 2)), ("a_split_3_5", (3, 4))]
    assert grouping.cuts == (Cut("a", 3, PassCut.SYNC_ALL),)
    assert "start another with it" in PassCut.SYNC_ALL.fix
