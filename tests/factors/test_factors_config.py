"""The settings of a model of pairs: what is refused, and that nothing is taken for another."""

import math
from typing import Any

import pytest

from drpm.factors.config import FactorsConfig
from drpm.training.errors import ConfigError


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"method": "foo"}, "method must be 'drpm', 'hg', 'ada' or 'label', but got 'foo'."),
        (
            {"averaging": "mean"},
            "averaging must be 'group' or 'multi-level', but got 'mean'.",
        ),
        (
            {"objective": "Exact"},
            "objective must be 'bounds' or 'exact', but got 'Exact'; did you mean 'exact'?",
        ),
        (
            {"shared_divergence": "Once"},
            "shared_divergence must be 'once' or 'twice', but got 'Once'; did you mean 'once'?",
        ),
        (
            {"prior_log_weights": (0.0,)},
            "prior_log_weights must have more items, but got (0.0,).",
        ),
        (
            {"temperature": (1.0,)},
            "temperature must have more items, but got (1.0,).",
        ),
        ({"temperature": (1.0, 0.0)}, "temperature[1] must be greater than 0, but got"),
        ({"gamma": math.inf}, "gamma must be a finite number, but got inf."),
        ({"gamma": -1.0}, "gamma must be at least 0, but got -1.0."),
        ({"latent": 0}, "latent must be greater than 0, but got 0."),
        ({"latent": 2.0}, "latent must be a valid integer, but got 2.0."),
        ({"draws": 1}, "draws must be at least 2, but got 1."),
    ],
)
def test_refusals(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        FactorsConfig(**change)
    assert str(refused.value).startswith(complaint)
