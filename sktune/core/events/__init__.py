"""Events: what a command or a search reports to programs while it runs, one class for each kind.

Not here: how an event is shown to people (``sktune.cli.views``), and the JSON Schema (written from these classes by
``docs/generate.py``).
"""

from sktune.core.events.analysis import ANALYSIS_EVENTS
from sktune.core.events.base import Event, Listener
from sktune.core.events.commands import COMMAND_EVENTS
from sktune.core.events.lines import parse_event, print_event, print_failure
from sktune.core.events.scopes import SCOPE_EVENTS
from sktune.core.events.search import SEARCH_EVENTS
from sktune.core.events.studies import STUDY_EVENTS
from sktune.core.events.workers import WORKER_EVENTS

__all__ = ["EVENTS", "Event", "Listener", "parse_event", "print_event", "print_failure"]

EVENTS: dict[str, type[Event]] = {
    kind.event: kind
    for kind in (*SEARCH_EVENTS, *WORKER_EVENTS, *ANALYSIS_EVENTS, *STUDY_EVENTS, *SCOPE_EVENTS, *COMMAND_EVENTS)
}
"""All kinds of events by name, in the order in which they are documented."""
