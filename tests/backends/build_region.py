"""Build one region in the cache of ``TORCHINDUCTOR_CACHE_DIR`` as a worker does, and print what came of it.

``python build_region.py CORE READY GO``: keeps to a core, makes the file ``READY``, and begins when there is ``GO``.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import fx
from torch._dynamo.utils import counters

from sktune.program.sktune_program.inductor.compiled_regions import RegionCache
from sktune.program.sktune_program.inductor.regions import GraphSpan, cut


def gated(values: torch.Tensor) -> tuple[torch.Tensor]:
    """Return something that is fused."""
    return (torch.nn.functional.silu(values) * values + 1,)


def main() -> None:
    """See the module."""
    core, ready, go = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    inputs = [torch.arange(4096, dtype=torch.float32).view(64, 64) / 512]
    graph = fx.symbolic_trace(gated)
    cutting = cut(graph, [GraphSpan("gate", 0, len(graph.graph.nodes) - 2)], inputs)
    Path(ready).touch()
    while not Path(go).exists():
        time.sleep(0.005)
    region = RegionCache().compile(cutting.slots[0])
    (result,) = cutting.fill([region.function])(*inputs)
    print(
        json.dumps(
            {
                "key": cutting.slots[0].region.key,
                "code": region.code_digest,
                "bits": hashlib.sha256(result.numpy().tobytes()).hexdigest(),
                "built": counters["inductor"]["fxgraph_cache_miss"],
            }
        )
    )


if __name__ == "__main__":
    main()
