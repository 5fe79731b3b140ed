"""The settings of a model of shared factors: everything that is needed to train it again."""

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from drpm.training.config import TrainingConfig, require_one_device, settings

Method = Literal["drpm", "hg", "ada", "label"]
Averaging = Literal["group", "multi-level"]


@settings
class FactorsConfig:
    """A variational autoencoder of pairs of images that share some of their factors.

    Arguments:
        method: How shared dimensions are found. ``drpm``: by a random partition; ``hg``: their
            number by the hypergeometric law, and then the most similar ones; ``ada``: those in the
            lower half of the range of divergences; ``label``: all but a given one.
        averaging: What two views make of a shared dimension. ``group``: the mean of both means and
            of both variances; ``multi-level``: a mean weighted by precision.
        objective: ``bounds``: for ``drpm`` the paper's bounds on the mass of a partition, for
            ``hg`` the mass of how many dimensions are shared, as in its paper; ``exact``: the mass
            of the partition itself, which is also of which they are.
        latent: Dimensions of the latent space.
        shared_divergence: How often that of a shared dimension counts for a pair. ``once``: it is
            one code of both views, as in the paper's formula; ``twice``: once for each view, as in
            the weakly-supervised study that the paper follows. Only with the first anything is
            gained by sharing what two views agree in.
        beta: The weight of the latent divergence.
        gamma: The weight of the sizes' divergence, for ``drpm`` and ``hg``.
        delta: The weight of the order's divergence, for ``drpm``.
        smallest_divergence: For ``drpm``: that of views that do not differ in a dimension, in
            nats; it is added to all. The paper takes the logarithm as it is; but then the order's
            term is as large for codes that say next to nothing as for others, and some runs never
            had any other. In quick looks, where it was a least value instead, 0.1 had a larger
            evidence than 1e-6, 0.01 and 1.
        draws: Partitions drawn for the exact divergence of a pair.
        prior_log_weights: What the prior thinks of independent and shared dimensions.
        temperature: Of what is relaxed, at the start and at the end of training.
        steps_per_epoch: What is called an epoch, since pairs are drawn anew at every step.
        training: How the model is trained.
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
