"""Prior standard deviations of the effects of the segment model, by group."""

from collections.abc import Mapping

PRIOR_SD: Mapping[str, float] = {
    "scope": 2.0,
    "unit": 1.0,
    "unit key": 0.7,
    "unit type": 0.7,
    "border type": 1.0,
    "crossing": 1.0,
    "length": 0.1,
    "length step": 1.5,
    "beside": 0.2,
    "captured work": 1.0,
    "option of scope": 0.5,
    "option of unit": 0.2,
    "option of unit type": 0.1,
    "cut": 0.5,
    "observed scope": 0.3,
    "observed unit": 0.1,
}
"""Prior standard deviations, in units of what one unit typically saves."""
STEP_OPTION_SD = 0.02
"""Of an option of the whole step, as a share of the baseline."""
CAPTURE_SD = 0.003
"""Of the effect of capturing scopes at all, as a share of the baseline."""
NO_EFFECT_SD = 1e-9
"""Of the law's terms where scopes do not follow it, as a share of the baseline."""

GRIDS: Mapping[str, tuple[float, ...]] = {
    "unit_sd": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "segment_ratio": (0.1, 0.3, 1.0, 3.0),
    "step_noise": (1.0, 2.0, 5.0, 15.0),
    "scope_noise": (0.5, 1.0, 3.0, 10.0),
}
"""Values among which the evidence chooses hyperparameters, ``unit_sd`` as factors of a typical saving."""
LAW_GRIDS: Mapping[str, tuple[float, ...]] = {
    **GRIDS,
    "unit_sd": (1e-4, 1e-3, *GRIDS["unit_sd"]),
    "beyond_law": (0.01, 0.05, 0.2, 1.0),
}
"""For scopes that follow the law, which may leave nothing to other effects."""
