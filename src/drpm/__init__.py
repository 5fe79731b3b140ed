"""Exact, differentiable distributions over the partitions of a set."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

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

__version__ = "0.1.0"

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
    # The laws need torch, which takes a second to import. They are imported on first use, so that
    # the command line's help does not wait for it.

    _fetch, __dir__ = fetch_from(__name__, {"distributions": __all__})

    def __getattr__(name: str) -> Any:
        # The parts of the package, so that `import drpm` is enough for `drpm.distributions`.
        is_part = name not in __all__ and not name.startswith("_")
        if is_part and find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}")
        return _fetch(name)
