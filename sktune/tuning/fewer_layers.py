"""Fewer layers first: a search on a model that is cut short, and its best plans tried on the whole model.

Layers of one kind share their parameters, so a point of the small model is one of the whole model. Only on the whole
model can a plan win: there it is verified and measured like any other.
"""

import time
from dataclasses import fields, replace

from sktune.core.errors import BadInputError
from sktune.core.events import Event, Listener
from sktune.core.events.search import ProxyFinished, StudyFinished
from sktune.study.facts import CarriedPlan, ProxyFindings
from sktune.study.records import incumbent_first
from sktune.study.result import SearchResult
from sktune.tuning.loop import run
from sktune.tuning.prepare import space_spec
from sktune.tuning.request import Request

MOST_CARRIED = 5
PROXY_SHARE = 0.5
"""Of a time budget, what the search on the cut model may take."""


def search(request: Request, listener: Listener = lambda event: None, began_s: float | None = None) -> SearchResult:
    """Search as ``run`` does, on fewer layers first where the request says so.

    Raises:
        SktuneError: as ``run``; and where layers have parameters of their own, or the model cannot be cut.
    """
    if request.proxy_layers is None:
        return run(request, listener, began_s)
    spec, preset = request.target()
    if space_spec(request, spec, preset).per_layer:
        raise BadInputError("--proxy-layers: in this space each layer has parameters of its own; leave out per_layer")
    began_s = time.monotonic() if began_s is None else began_s  # one budget for both searches
    small = replace(
        request,
        proxy_layers=None,
        layers=request.proxy_layers,
        study=request.study and f"{request.study}-proxy{request.proxy_layers}",
        time_budget_s=request.time_budget_s and PROXY_SHARE * request.time_budget_s,
    )
    proxy = run(small, _renamed(listener), began_s)
    findings = ProxyFindings(proxy.study, request.proxy_layers, len(proxy.trials), _best(proxy)[:MOST_CARRIED])
    return run(replace(request, proxy_layers=None), listener, began_s, findings)


def _best(found: SearchResult) -> tuple[CarriedPlan, ...]:
    """Return the plans that passed, best first: those of the final comparison by its figures, then the others."""
    compared = {row.name: row.speedup.ratio for row in found.final if row.speedup and row.bit_identical is not False}
    passed = [
        CarriedPlan(record.number, compared.get(str(record.number), record.outcome.speedup.ratio), dict(record.values))
        for record in incumbent_first(found.trials)
        if record.outcome and record.outcome.speedup
    ]
    return tuple(sorted(passed, key=lambda plan: (str(plan.trial) in compared, plan.speedup), reverse=True))


def _renamed(listener: Listener) -> Listener:
    """Return a listener that hears of the small model's result under a name of its own."""

    def listen(event: Event) -> None:
        if isinstance(event, StudyFinished):
            event = ProxyFinished(**{own.name: getattr(event, own.name) for own in fields(event)})
        listener(event)

    return listen
