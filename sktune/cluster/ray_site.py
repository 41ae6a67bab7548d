"""A Ray cluster as the place of a search. Needs ``sktune[ray]``."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from sktune.backends.fingerprint import of_request
from sktune.cluster.hosts import HostReport, connected, refuse_mixed, survey
from sktune.cluster.ray_engine import RayEngine
from sktune.core.events.search import CoresChosen
from sktune.core.space import SpaceSpec
from sktune.measure.machine import Placement
from sktune.targets import TargetSpec
from sktune.tuning.scheduler import Engine, Share
from sktune.tuning.site import is_placed, shared
from sktune.worker.jobs import RunnerFactory, RunnerSetup


class RayCluster:
    """A worker for each die of a cluster; a ``Site``.

    Args:
        address: of the cluster; None for the one on this host.
        share: which of the dies to use.
    """

    def __init__(self, address: str | None, share: Share) -> None:
        self._address, self._share = address, share
        self._connection = ExitStack()  # starting Ray's processes twice would take twice as long
        self._reports: tuple[HostReport, ...] = ()

    def fingerprint(self, spec: TargetSpec, space: SpaceSpec, /) -> dict[str, str]:
        """See ``Site.fingerprint``: that of the hosts with dies, not of the one where the search is started."""
        self._connection.enter_context(connected(self._address))
        self._reports = survey(spec, space)
        refuse_mixed(self._reports)
        return dict(self._reports[0].fingerprint)

    def fingerprint_of_answer(self, spec: TargetSpec, space: SpaceSpec, stored: Mapping[str, str], /) -> dict[str, str]:
        """See ``Site.fingerprint_of_answer``: the cluster is not asked, and may be gone."""
        return {**stored, **of_request(spec, space)}

    def placed(self, spec: TargetSpec, stored: Mapping[str, str], /) -> tuple[Placement, CoresChosen | None]:
        """See ``Site.placed``."""
        if not is_placed(spec):
            return Placement(), None
        dies = max(report.dies for report in self._reports)
        return shared(stored, dies, min(report.cores for report in self._reports)), None

    @contextmanager
    def engine(self, setup: RunnerSetup, factory: RunnerFactory, /) -> Iterator[Engine]:
        """See ``Site.engine``."""
        with self._connection, RayEngine(setup, factory, self._share) as engine:
            yield engine
