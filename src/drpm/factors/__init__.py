"""Shared generative factors of pairs of images: models, training and evaluation."""

from typing import TYPE_CHECKING

from drpm.lazy import fetch_from

if TYPE_CHECKING:
    from drpm.factors.config import FactorsConfig
    from drpm.factors.evaluation import Evidence, estimate_evidence, evaluate_pairs
    from drpm.factors.experiment import fit_factors
    from drpm.factors.models import FactorVAE, SharedFactors, load_factors
    from drpm.factors.pairs import (
        OwnPairs,
        PairSampler,
        World,
        arm_world,
        load_pairs,
        mpi3d_world,
    )

_PLACES = {
    "config": ("FactorsConfig",),
    "evaluation": ("Evidence", "evaluate_pairs", "estimate_evidence"),
    "experiment": ("fit_factors",),
    "models": ("FactorVAE", "SharedFactors", "load_factors"),
    "pairs": ("OwnPairs", "PairSampler", "World", "arm_world", "load_pairs", "mpi3d_world"),
}

__all__ = [
    "Evidence",
    "FactorVAE",
    "FactorsConfig",
    "OwnPairs",
    "PairSampler",
    "SharedFactors",
    "World",
    "arm_world",
    "estimate_evidence",
    "evaluate_pairs",
    "fit_factors",
    "load_factors",
    "load_pairs",
    "mpi3d_world",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = fetch_from(__name__, _PLACES)
