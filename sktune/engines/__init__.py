"""Engines: they run the calls of a search on its workers, in this process, on the dies of this host, or on a cluster.

Which plan a worker tries, and what its failure means, is decided in ``tuning``; a runner knows nothing of other
workers. Only ``sktune.engines.ray`` needs the extra ``sktune[ray]``.
"""

from typing import TYPE_CHECKING

from sktune.engines.base import Engine
from sktune.engines.dies import die_alone, dies_here, kind_of
from sktune.engines.inline import InlineEngine
from sktune.worker.jobs import RunnerFactory, RunnerSetup

if TYPE_CHECKING:
    from sktune.engines.share import Share


def local_engine(setup: RunnerSetup, workers: int, factory: RunnerFactory, share: "Share | None" = None) -> Engine:
    """Return an engine of this host: one worker uses whatever device is there, several have a die each.

    Raises:
        BadInputError: there are too few dies.
    """
    if workers == 1:
        return InlineEngine(factory(setup), die_alone(setup), setup.folder)
    from sktune.engines.local import LocalEngine

    dies = dies_here(kind_of(setup.spec), workers, setup.placement.core_count)
    return LocalEngine(setup, dies, factory, share)
