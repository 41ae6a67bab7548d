"""The options of Inductor's scopes in searches; their table is on the side of programs (``inductor.options``)."""

from collections.abc import Mapping

from sktune.backends.options import ListedOptions
from sktune.core.plan import Option
from sktune.program.sktune_program.inductor.options import INDUCTOR

EXACT: Mapping[str, Option] = {name: spec.exact for name, spec in INDUCTOR.items() if spec.exact is not None}
OPTIONS = ListedOptions("inductor", INDUCTOR)
