"""All kinds of events, in the order in which they are documented."""

from sktune.core.events.analysis import ANALYSIS_EVENTS
from sktune.core.events.base import Event
from sktune.core.events.commands import COMMAND_EVENTS
from sktune.core.events.scopes import SCOPE_EVENTS
from sktune.core.events.search import SEARCH_EVENTS
from sktune.core.events.studies import STUDY_EVENTS
from sktune.core.events.workers import WORKER_EVENTS

EVENTS: dict[str, type[Event]] = {
    kind.event: kind
    for kind in (*SEARCH_EVENTS, *WORKER_EVENTS, *ANALYSIS_EVENTS, *STUDY_EVENTS, *SCOPE_EVENTS, *COMMAND_EVENTS)
}
"""By name."""
