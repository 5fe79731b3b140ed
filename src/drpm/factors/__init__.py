"""Shared generative factors of pairs of images: models, training and evaluation."""

from typing import TYPE_CHECKING

from drpm.lazy import fetch_from

if TYPE_CHECKING:
    from drpm.factors.config import FactorsConfig as FactorsConfig
    from drpm.factors.experiment import Evidence as Evidence
    from drpm.factors.experiment import estimate_evidence as estimate_evidence
    from drpm.factors.experiment import evaluate_pairs as evaluate_pairs
    from drpm.factors.experiment import fit_factors as fit_factors
    from drpm.factors.models import FactorVAE as FactorVAE
    from drpm.factors.models import SharedFactors as SharedFactors
    from drpm.factors.models import load_factors as load_factors
    from drpm.factors.pairs import OwnPairs as OwnPairs
    from drpm.factors.pairs import PairSampler as PairSampler
    from drpm.factors.pairs import World as World
    from drpm.factors.pairs import arm_world as arm_world
    from drpm.factors.pairs import load_pairs as load_pairs
    from drpm.factors.pairs import mpi3d_world as mpi3d_world

_PLACES = {
    "config": ("FactorsConfig",),
    "experiment": ("Evidence", "estimate_evidence", "evaluate_pairs", "fit_factors"),
    "models": ("FactorVAE", "SharedFactors", "load_factors"),
    "pairs": ("OwnPairs", "PairSampler", "World", "arm_world", "load_pairs", "mpi3d_world"),
}
__all__ = [name for names in _PLACES.values() for name in names]

if not TYPE_CHECKING:
    __getattr__, __dir__ = fetch_from(__name__, _PLACES)
