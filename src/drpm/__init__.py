"""Exact, differentiable distributions over the partitions of a set."""

from typing import TYPE_CHECKING

from drpm.lazy import fetch_from

if TYPE_CHECKING:
    from drpm.distributions import (
        AffinityPartition,
        EnumeratedSizeLaw,
        FisherHypergeometric,
        OrderLaw,
        PlackettLuce,
        RandomPartition,
        RelaxedAffinityPartition,
        RelaxedFisherHypergeometric,
        RelaxedPlackettLuce,
        RelaxedRandomPartition,
        SizeLaw,
        partition_kl,
        score_function_loss,
        subset_permutation_log_prob,
    )

__version__ = "0.2.0"

__all__ = [
    "AffinityPartition",
    "EnumeratedSizeLaw",
    "FisherHypergeometric",
    "OrderLaw",
    "PlackettLuce",
    "RandomPartition",
    "RelaxedAffinityPartition",
    "RelaxedFisherHypergeometric",
    "RelaxedPlackettLuce",
    "RelaxedRandomPartition",
    "SizeLaw",
    "partition_kl",
    "score_function_loss",
    "subset_permutation_log_prob",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = fetch_from(__name__, {"distributions": __all__})
