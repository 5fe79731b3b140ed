"""Which generative factors two images share: models, their training and their scores."""

from typing import TYPE_CHECKING

from drpm.lazy import fetch_from

if TYPE_CHECKING:
    from drpm.factors.config import FactorsConfig
    from drpm.factors.evaluation import evaluate_pairs
    from drpm.factors.fitted import (
        Evidence,
        FittedFactors,
        SharedFactors,
        load_factors,
        measure_evidence,
    )
    from drpm.factors.own_pairs import OwnPairs, load_pairs
    from drpm.factors.pairs import PairSampler, World, arm_world, mpi3d_world
    from drpm.factors.training import fit_factors

_PLACES = {
    "config": ("FactorsConfig",),
    "evaluation": ("evaluate_pairs",),
    "fitted": ("Evidence", "FittedFactors", "SharedFactors", "load_factors", "measure_evidence"),
    "own_pairs": ("OwnPairs", "load_pairs"),
    "pairs": ("PairSampler", "World", "arm_world", "mpi3d_world"),
    "training": ("fit_factors",),
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
    __getattr__, __dir__ = fetch_from(__name__, _PLACES)
