"""A few faults of the campaign in every run of the tests, and proof that it finds what it is there to find."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest

from benchmarks.campaign.campaign import Campaign, Verdict, numbered, run_all
from benchmarks.campaign.faults import KINDS, SUBJECTS, Fault, draw
from benchmarks.campaign.table import table

FAULTS = 16
"""Of these the first of each kind: each costs two searches in processes of their own, some seconds of a core.

``python -m benchmarks.campaign`` runs more.
"""
SEED = 7


def test_faults_are_drawn_from_the_seed() -> None:
    """All kinds, on all subjects; the same again for the same seed."""
    faults = list(islice(draw(0), 1000))
    assert faults == list(islice(draw(0), 1000))
    assert faults != list(islice(draw(1), 1000))
    assert {fault.kind for fault in faults} == KINDS.keys()
    counts = Counter(fault.subject for fault in faults)
    assert all(abs(counts[subject] - 10 * percent) < 40 for subject, percent in SUBJECTS.items())
    assert {fault.kind for fault in islice(draw(0, "disk full"), 5)} == {"disk full"}


def test_a_table_counts_what_was_not_injected_apart() -> None:
    """It has not passed; and what did not hold is named."""
    faults = [fault for _, fault in numbered(3, 0, "SIGKILL", "sim")]
    ways, problems = ("SIGKILL", "", "SIGKILL"), ((), (), ("trial 1 was reported and is gone",))
    verdicts = [Verdict(index, fault, ways[index], (-9, 0), "", problems[index], 1.0)
                for index, fault in enumerate(faults)]  # fmt: skip
    assert [Verdict.from_json(verdict.to_json()) for verdict in verdicts] == verdicts
    page = table(verdicts, {"command": "a command"})
    assert "| **all** | | | 3 | 1 | 1 | 1 | |" in page
    assert "sim: trial 1 was reported and is gone" in page


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    """Return a campaign with its undisturbed search."""
    with Campaign(tmp_path_factory.mktemp("campaign")) as campaign:
        yield campaign


@pytest.mark.slow
def test_faults_lose_nothing(campaign: Campaign) -> None:
    """Whatever happens to a search, the same command ends it as if nothing had happened."""
    verdicts: list[Verdict] = []
    faults = {fault.kind: (index, fault) for index, fault in reversed([*numbered(FAULTS, SEED, subject="sim")])}
    assert len(faults) == 9
    run_all(campaign, iter(faults.values()), 1, verdicts.append)
    assert not [(verdict.fault, verdict.violations) for verdict in verdicts if verdict.violations]
    assert sum(bool(verdict.way) for verdict in verdicts) > len(faults) / 2


@pytest.mark.slow
def test_a_search_that_loses_a_trial_is_found(campaign: Campaign) -> None:
    """An invariant that cannot fail proves nothing."""
    fault = Fault("SIGTERM", "search", "sim", 0.9, 0)
    verdict = campaign.run(FAULTS, fault, CAMPAIGN_BROKEN="1")
    assert any("trial 1" in violation for violation in verdict.violations), verdict
