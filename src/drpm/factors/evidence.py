"""How likely a model takes pairs to be: what its weights can be chosen by, without labels."""

import copy
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from drpm.factors.fitted import FittedFactors
from drpm.factors.models import FactorVAE
from drpm.nn.gaussians import standard_divergence


class Evidence(NamedTuple):
    """Means over pairs, in nats.

    Arguments:
        pair_evidence: A lower bound of the log-probability of both images together: parts of
            both views are summed, not averaged, and a shared dimension, which is one code for
            both of them, counts once. Where a fixed rule says what is shared, that is taken as
            given.
        minus_loss: Minus the sum of the three parts: minus the loss, were all its weights 1.
        reconstruction: How unlikely images are given their codes, averaged over both views.
        latent_divergence: That of the codes from their prior, likewise.
        partition_divergence: That of what is shared, how many and which dimensions, from a prior
            that does not know the pair; nothing where a fixed rule says it.
    """

    pair_evidence: float
    minus_loss: float
    reconstruction: float
    latent_divergence: float
    partition_divergence: float


@torch.no_grad()
def measure_evidence(
    fitted: FittedFactors,
    first: Tensor,
    second: Tensor,
    *,
    label: Tensor | None = None,
    seed: int = 0,
) -> Evidence:
    """Judge a model by a lower bound of how likely pairs are, for which no factor need be known.

    A larger gamma or delta pulls what is shared to its prior at the price of the images, and
    changes the loss itself, so that losses of models with other weights cannot be compared. Here
    all weights are 1 and the mass of a partition is exact, whatever a model was trained with: all
    candidates of one method are judged by the same bound.

    Methods are not to be compared by it where one of them has a fixed rule, and pays nothing for
    what is shared.

    Arguments:
        fitted: The model.
        first: (P, C, H, W), values in [0, 1]; pairs that it was not trained on.
        second: The same.
        label: (P,), for the method that is told a factor that differs.
        seed: Settles what is drawn: partitions and codes, one for each pair.
    """
    model = _with_weights_of_one(fitted.model)
    generator = torch.Generator(fitted.device).manual_seed(seed)
    temperature = torch.tensor(fitted.config.temperature[1], device=fitted.device)
    found = []
    for batch in fitted.batches(first, second, label):
        # Drawn, not the likeliest: a bound holds on average over what a model may take as shared.
        views = model.compare(batch, temperature, generator)
        errors = model.errors(batch, views.aggregated.sample((), generator))
        latent = standard_divergence(views.aggregated)
        shared = (views.shared.mask * latent).sum(-1)
        terms = [torch.zeros_like(shared[0]), *views.shared.terms.values()]
        parts = [errors.mean(0), latent.sum(-1).mean(0), torch.stack(terms).sum(0), shared.mean(0)]
        found.append(torch.stack(parts).double())
    reconstruction, latent, partition, shared = torch.cat(found, 1).mean(1)
    views_mean = reconstruction + latent
    return Evidence(
        pair_evidence=-(2 * views_mean - shared + partition).item(),
        minus_loss=-(views_mean + partition).item(),
        reconstruction=reconstruction.item(),
        latent_divergence=latent.item(),
        partition_divergence=partition.item(),
    )


def _with_weights_of_one(model: FactorVAE) -> FactorVAE:
    """The same model, whose terms are divergences as they are, of the exact mass."""
    model = copy.deepcopy(model)
    model.aggregation.config = replace(model.config, gamma=1.0, delta=1.0, objective="exact")
    return model
