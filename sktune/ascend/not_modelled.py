"""What the model of the compiler leaves out: whatever is foreseen or simulated for a scope may differ by it."""

from sktune.core.events.commands import NotModelled

NOT_MODELLED = (
    NotModelled(
        "the newest GE's check for deadlocks of streams (libascendsk.so)",
        "it may cut a scope further; CANN's log names the operator",
    ),
    NotModelled(
        "streams, events and the order of operators, which GE assigns",
        "streams are those of npu_stream_switch, with an event for each edge between two; GE may do without some",
    ),
    NotModelled(
        "operators that GE adds, merges or leaves out",
        "cuts and SuperKernels are counted on TorchAir's graph; certain refusals allow for merging, not for additions",
    ),
    NotModelled(
        "views that GE leaves on a stream",
        "each cuts a scope there; views count as removed, and what is certain does not depend on it",
    ),
    NotModelled(
        "which types of operators this CANN can fuse",
        "check takes all, a search learns them from its trials, sim has a list in its constants",
    ),
    NotModelled(
        "cores and SyncAll of a kernel before it is compiled",
        "check foresees neither a starved SyncAll, a split because of one, nor too few cores; sim assumes all "
        "by type and size",
    ),
    NotModelled("how HCCL chooses an algorithm", "collectives count as operators that can be fused, or by sim's list"),
    NotModelled(
        "sub-kernels with dynamic shapes, and tiling on AI CPU", "all shapes count as static, tiled before the step"
    ),
    NotModelled(
        "which kernels have hooks for early start",
        "sim has a list in its constants, of public sources: your own kernels may have them; it changes times alone",
    ),
    NotModelled("errors of the C++ compiler and the linker", "only a compile shows them"),
)
