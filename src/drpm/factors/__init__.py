"""Which generative factors two images share: models, their training and their scores."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drpm.factors.config import FactorsConfig
    from drpm.factors.evaluation import evaluate_pairs
    from drpm.factors.evidence import Evidence, measure_evidence
    from drpm.factors.fitted import FittedFactors, SharedFactors, load_factors
    from drpm.factors.own_pairs import OwnPairs, load_pairs
    from drpm.factors.pairs import PairSampler, World, arm_world, mpi3d_world
    from drpm.factors.pipeline import fit_factors

_PLACES = {
    "config": ("FactorsConfig",),
    "evaluation": ("evaluate_pairs",),
    "evidence": ("Evidence", "measure_evidence"),
    "fitted": ("FittedFactors", "SharedFactors", "load_factors"),
    "own_pairs": ("OwnPairs", "load_pairs"),
    "pairs": ("PairSampler", "World", "arm_world", "mpi3d_world"),
    "pipeline": ("fit_factors",),
}

__all__ = [
    "Evidence",
    "FactorsConfig",
    "FittedFactors",
    "OwnPairs",
    "PairSampler",
    "SharedFactors",
    "World",
    "arm_world",
    "evaluate_pairs",
    "fit_factors",
    "load_factors",
    "load_pairs",
    "measure_evidence",
    "mpi3d_world",
]

if not TYPE_CHECKING:
    # Whoever only wants the settings should not wait for torch.

    def __getattr__(name: str) -> Any:
        for place, names in _PLACES.items():
            if name in names:
                return getattr(import_module(f"drpm.factors.{place}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
