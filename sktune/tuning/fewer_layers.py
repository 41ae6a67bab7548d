"""Fewer layers first: a search on a model with fewer layers, whose best plans are then tried on the whole model.

Layers of one kind share their parameters, so a point of the small model is also one of the whole model. A plan can win
only on the whole model, where it is verified and measured like any other.
"""

import time
from dataclasses import fields, replace

from sktune.core.errors import BadInputError
from sktune.core.events.base import Event, Listener
from sktune.core.events.search import ProxyFinished, StudyFinished
from sktune.study.facts import CarriedPlan, ProxyFindings
from sktune.study.records import incumbent_first
from sktune.study.result import SearchResult
from sktune.tuning.loop import run
from sktune.tuning.prepare import space_spec
from sktune.tuning.request import Request
from sktune.tuning.site import Site

MAX_CARRIED = 5
PROXY_SHARE = 0.5
"""Share of the time budget that the search on the small model may take."""


def search(
    request: Request, listener: Listener = lambda event: None, began_s: float | None = None, site: Site | None = None
) -> SearchResult:
    """Search as ``run`` does, on fewer layers first if the request says so.

    Raises:
        SktuneError: as ``run``; also if each layer has its own parameters, or the model's layers cannot be reduced.
    """
    if request.proxy_layers is None:
        return run(request, listener, began_s, site=site)
    spec, preset = request.target()
    if space_spec(request, spec, preset).per_layer:
        raise BadInputError("--proxy-layers: in this space each layer has its own parameters; leave out per_layer")
    began_s = time.monotonic() if began_s is None else began_s  # one budget for both searches
    small = replace(
        request,
        proxy_layers=None,
        layers=request.proxy_layers,
        study=request.study and f"{request.study}-proxy{request.proxy_layers}",
        time_budget_s=request.time_budget_s and PROXY_SHARE * request.time_budget_s,
    )
    proxy = run(small, _renamed(listener), began_s, site=site)
    findings = ProxyFindings(proxy.study, request.proxy_layers, len(proxy.trials), _best(proxy)[:MAX_CARRIED])
    return run(replace(request, proxy_layers=None), listener, began_s, findings, site=site)


def _best(result: SearchResult) -> tuple[CarriedPlan, ...]:
    """Return the plans that passed, best first: those of the final comparison by its figures, then the others."""
    compared = {row.name: row.speedup.ratio for row in result.final if row.speedup and row.bit_identical is not False}
    passed = [
        CarriedPlan(record.number, compared.get(str(record.number), record.outcome.speedup.ratio), dict(record.values))
        for record in incumbent_first(result.trials)
        if record.outcome and record.outcome.speedup
    ]
    return tuple(sorted(passed, key=lambda plan: (str(plan.trial) in compared, plan.speedup), reverse=True))


def _renamed(listener: Listener) -> Listener:
    """Return a listener that gets the small model's result as ``ProxyFinished``."""

    def listen(event: Event) -> None:
        if isinstance(event, StudyFinished):
            event = ProxyFinished(**{field.name: getattr(event, field.name) for field in fields(event)})
        listener(event)

    return listen
