"""Settings of a model of shared factors."""

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from drpm.training.config import TrainingConfig, require_one_device, settings

Method = Literal["drpm", "hg", "ada", "label"]
Averaging = Literal["group", "multi-level"]


@settings
class FactorsConfig:
    """A variational autoencoder of pairs of images that share some of their factors.

    Args:
        method: How shared dimensions are found. ``drpm``: by a random partition; ``hg``: their
            number by the hypergeometric law, then the most similar ones; ``ada``: those in the
            lower half of the range of divergences; ``label``: all but one, given by a label.
        averaging: How the two posteriors of a shared dimension are averaged. ``group``: mean of
            the means and of the variances; ``multi-level``: mean weighted by precision.
        objective: ``bounds``: for ``drpm`` the paper's bounds on the probability of a partition,
            for ``hg`` the probability of the number of shared dimensions, as in its paper;
            ``exact``: the probability of the partition itself.
        latent: Number of latent dimensions.
        shared_divergence: How often the KL divergence of a shared dimension counts for a pair.
            ``once``: it is one code for both views, as in the paper's formula; ``twice``: once for
            each view, as in Locatello et al. (2020). Only ``once`` rewards sharing.
        beta: Weight of the KL divergence of the codes.
        gamma: Weight of the divergence of the sizes, for ``drpm`` and ``hg``.
        delta: Weight of the divergence of the order, for ``drpm``.
        smallest_divergence: For ``drpm``: added to all divergences between views, in nats, before
            the logarithm. With the plain logarithm of the paper the order term is as large for
            codes that carry next to nothing as for others, and some runs never learned anything.
        draws: Partitions drawn for the exact divergence of a pair.
        prior_log_weights: Log-weights of independent and shared dimensions in the prior.
        temperature: Of the relaxation, at the start and at the end of training.
        steps_per_epoch: Steps that count as an epoch, since pairs are drawn anew at every step.
        training: Training settings.
    """

    method: Method = "drpm"
    averaging: Averaging = "group"
    objective: Literal["bounds", "exact"] = "bounds"
    latent: PositiveInt = 10
    shared_divergence: Literal["once", "twice"] = "once"
    beta: NonNegativeFloat = 1.0
    gamma: NonNegativeFloat = 0.25
    delta: NonNegativeFloat = 0.25
    smallest_divergence: PositiveFloat = 0.1
    # The score-function estimator compares every draw with the others.
    draws: Annotated[int, Field(ge=2)] = 4
    prior_log_weights: tuple[float, float] = (0.0, 0.0)
    temperature: tuple[PositiveFloat, PositiveFloat] = (1.0, 0.5)
    steps_per_epoch: PositiveInt = 1000
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(epochs=300, batch_size=64, learning_rate=1e-4)
    )

    def __post_init__(self) -> None:
        require_one_device(self.training)
