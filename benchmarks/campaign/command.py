"""``sktune`` with shorter time limits and a final comparison in one process; the rest is as users run it.

With ``CAMPAIGN_BROKEN`` it does not store the outcome of trial 1, to show that the campaign finds that.
"""

import os

if __name__ == "__main__":
    from tests.warm import delegate

    delegate("benchmarks.campaign.command", lingers=True)

import sktune.backends.info
import sktune.recipes.run
import sktune.worker.runner
from benchmarks.campaign.scene import read_controls
from sktune import cli
from sktune.core.outcome import Outcome
from sktune.study.study import Proposal, TuningStudy

sktune.backends.info.FINAL_PROCESSES = 1
sktune.worker.runner.OPEN_TIMEOUT_S = 120.0
sktune.worker.runner.MIN_RUN_TIMEOUT_S = 20.0
sktune.recipes.run.ORPHAN_S = 1.0


def forgetful(
    study: TuningStudy, proposal: Proposal, outcome: Outcome, latency_ms: float | None, name: str = ""
) -> None:
    """Store an outcome, except for that of trial 1."""
    if proposal.number != 1:
        tell(study, proposal, outcome, latency_ms, name)


tell = TuningStudy.tell


def main() -> None:
    """Run the command."""
    read_controls()
    sktune.worker.runner.SERVER = "benchmarks.campaign.server"
    if "CAMPAIGN_BROKEN" in os.environ:
        setattr(TuningStudy, "tell", forgetful)  # noqa: B010 - mypy takes an assignment for a mistake
    cli.main()


if __name__ == "__main__":
    main()
