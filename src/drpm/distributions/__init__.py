"""Distributions over sizes, orders and partitions.

Importing any of them imports all, because some register KL divergences with torch.
"""

from drpm.distributions.affinities import AffinityPartition, RelaxedAffinityPartition
from drpm.distributions.base import EnumeratedSizeLaw, OrderLaw, SizeLaw
from drpm.distributions.orders import PlackettLuce, subset_permutation_log_prob
from drpm.distributions.partitions import RandomPartition, partition_kl, score_function_loss
from drpm.distributions.relaxed import (
    RelaxedFisherHypergeometric,
    RelaxedPlackettLuce,
    RelaxedRandomPartition,
)
from drpm.distributions.sizes import FisherHypergeometric

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
