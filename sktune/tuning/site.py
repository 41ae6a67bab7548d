"""Where a search runs its trials: on this host, or on a Ray cluster."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from sktune.backends.fingerprint import fingerprint
from sktune.core.events.search import CoresChosen
from sktune.core.space import SpaceSpec
from sktune.engines import local_engine
from sktune.engines.base import Engine
from sktune.engines.share import FirstPlaces, Share
from sktune.measure.placement import Placement
from sktune.targets import TargetSpec
from sktune.tuning.placing import as_stored, placed
from sktune.tuning.request import Request
from sktune.worker.jobs import RunnerFactory, RunnerSetup


class Site(Protocol):
    """The machines of a search."""

    def fingerprint(self, spec: TargetSpec, space: SpaceSpec, /) -> dict[str, str]:
        """Return what figures depend on, equal on all machines; see ``sktune.backends.fingerprint``.

        Raises:
            BadInputError: the machines differ.
        """
        ...

    def fingerprint_of_answer(self, spec: TargetSpec, space: SpaceSpec, stored: Mapping[str, str], /) -> dict[str, str]:
        """Return what must be equal to ``stored`` for a study that is answered to be that of a request."""
        ...

    def placed(self, spec: TargetSpec, stored: Mapping[str, str], /) -> tuple[Placement, CoresChosen | None]:
        """Return where the steps of a worker run; see ``sktune.tuning.placing.placed``."""
        ...

    def engine(self, setup: RunnerSetup, factory: RunnerFactory, /) -> AbstractContextManager[Engine]:
        """Return the engine of a search."""
        ...


class LocalSite:
    """One or several workers on this host; a ``Site``."""

    def __init__(self, workers: int, share: Share | None = None) -> None:
        self._workers, self._share = workers, share

    def fingerprint(self, spec: TargetSpec, space: SpaceSpec, /) -> dict[str, str]:
        """See ``Site.fingerprint``."""
        return fingerprint(spec, space)

    def fingerprint_of_answer(self, spec: TargetSpec, space: SpaceSpec, stored: Mapping[str, str], /) -> dict[str, str]:
        """See ``Site.fingerprint_of_answer``."""
        return self.fingerprint(spec, space) | as_stored(stored).fingerprint

    def placed(self, spec: TargetSpec, stored: Mapping[str, str], /) -> tuple[Placement, CoresChosen | None]:
        """See ``Site.placed``."""
        return placed(spec, stored, self._workers)

    def engine(self, setup: RunnerSetup, factory: RunnerFactory, /) -> Engine:
        """See ``Site.engine``."""
        return local_engine(setup, self._workers, factory, self._share)


def site_of(request: Request, share: Share | None = None) -> Site:
    """Return where a request's trials run; ``share`` says which of its workers other searches leave to it."""
    if request.engine == "ray":
        from sktune.cluster.ray_site import RayCluster  # the extra sktune[ray]

        return RayCluster(request.address, share or FirstPlaces(request.workers))
    return LocalSite(request.workers or 1, share)
