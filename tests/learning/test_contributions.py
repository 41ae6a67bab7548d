"""What a saving is made of, and predictions from the other trials."""

from pathlib import Path

import numpy as np
import pytest

from sktune.core.plan import Plan
from sktune.learning.contributions import contributions, predictions
from sktune.learning.history import Learned
from sktune.reports.why import learned_from
from sktune.study.result import SearchResult
from sktune.study.stored_space import space_of
from tests.reports.page_studies import study_in


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    """A study whose plans save by their number of scopes."""
    return study_in(tmp_path_factory.mktemp("runs"), trials=20)


def learned(study: SearchResult, without: Plan | None = None) -> Learned:
    """Return what was learned from a study, but for the trials of one plan."""
    space = space_of(study.facts, study.history)
    assert space
    found = Learned(space)
    left_out = {record.number for record in study.trials if record.plan == without}
    found.read_once([trial for trial in study.history if trial.number not in left_out])
    return found


def test_parts_add_up_to_the_expected_saving(study: SearchResult) -> None:
    """Of any plan: groups of scopes, borders and capture, and each option."""
    known = learned(study)
    posterior = known.posterior()
    for record in study.trials:
        parts = contributions(known, posterior, record.judged_plan)
        mean, _ = posterior.predict(known.model.row(record.judged_plan)[None, :])
        assert sum(part.saving for part in parts) == pytest.approx(float(mean[0]), abs=1e-9)
        assert sum(part.scopes for part in parts) == len(record.judged_plan.scopes)
        assert all(part.sd >= 0 for part in parts)


def test_a_prediction_does_not_know_the_trials_own_latency(study: SearchResult) -> None:
    """It is that of the same model without the trial, as far as only its step latency is left out."""
    known = learned(study)
    chosen = known.posterior().chosen
    for each in predictions(known, known.posterior())[:5]:
        others = learned(study, without=each.plan)
        posterior = others.model.fit(chosen)
        mean, sd = posterior.predict_plans(others.model.describe([each.plan]))
        # The trial's scope times are left out, too, here: a few percent of the prediction's spread.
        assert each.expected == pytest.approx(float(mean[0]), abs=3 * float(sd[0]))
        assert each.expected != pytest.approx(each.saving, abs=1e-9)
        assert each.surprise == pytest.approx((each.saving - each.expected) / each.sd)


def test_leaving_out_is_exact_without_scope_times(tmp_path: Path) -> None:
    """The formula equals a fit without the trial."""
    study = study_in(tmp_path, trials=16, scope_times=False)
    known = learned(study)
    chosen = known.posterior().chosen
    for each in predictions(known, known.posterior()):
        others = learned(study, without=each.plan)
        for segment in known.model.known_segments:  # the same effects, of which some may have no observation now
            others.model._give_effects(np.array([segment]))
        mean, _ = others.model.fit(chosen).predict_plans(others.model.describe([each.plan]))
        assert each.expected == pytest.approx(float(mean[0]), abs=1e-6)


def test_hyperparameters_are_chosen_once(study: SearchResult) -> None:
    """A study that is only looked at is read in one go, with the same effects as for a sampler."""
    why = learned_from(study)
    assert why
    assert {effect.name for effect in why.options} == {"early-start=0", "split-mode=2"}
    assert len(why.predictions) == len(
        {record.plan for record in study.trials if record.outcome and record.outcome.speedup}
    )
