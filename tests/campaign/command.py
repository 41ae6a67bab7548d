"""``sktune`` with shorter time limits and a final comparison in one process; the rest is as users run it.

With ``CAMPAIGN_BROKEN`` it does not store the outcome of trial 1, to show that the campaign finds that.
"""

import os

import sktune.backends.info
import sktune.runners.program.run
import sktune.runners.worker.client
from sktune.cli import main
from sktune.core.outcome import Outcome
from sktune.study.study import Proposal, TuningStudy

sktune.backends.info.FINAL_PROCESSES = 1
sktune.runners.worker.client.OPEN_TIMEOUT_S = 120.0
sktune.runners.worker.client.MIN_RUN_TIMEOUT_S = 20.0
sktune.runners.program.run.ORPHAN_S = 1.0

if "CAMPAIGN_BROKEN" in os.environ:
    tell = TuningStudy.tell

    def forgetful(study: TuningStudy, proposal: Proposal, outcome: Outcome, latency_ms: float | None) -> None:
        """Store an outcome, except for that of trial 1."""
        if proposal.number != 1:
            tell(study, proposal, outcome, latency_ms)

    setattr(TuningStudy, "tell", forgetful)  # noqa: B010 - mypy takes an assignment for a mistake

if __name__ == "__main__":
    main()
