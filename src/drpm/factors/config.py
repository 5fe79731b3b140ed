"""The hyperparameters of a model of shared factors, and the settings of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from drpm.experiments import Job, option
from drpm.training.config import TrainingConfig, check_setting, settings

Method = Literal["drpm", "hg", "ada", "label"]
Averaging = Literal["group", "multi-level"]

WORLDS: Final = ("arm", "mpi3d")
SIDES: Final = (8, 16, 32, 64)  # of images, in pixels


@settings
class FactorsConfig:
    """A variational autoencoder of pairs of images that share some of their factors.

    Args:
        method: How shared dimensions are found. ``drpm``: by a random partition; ``hg``: their
            number from a hypergeometric distribution, then the most similar ones; ``ada``: those
            in the lower half of the range of divergences; ``label``: all except a labeled one.
        averaging: How the two posteriors of a shared dimension are averaged. ``group``: mean of
            the means and of the variances; ``multi-level``: mean weighted by precision.
        objective: ``bounds``: for ``drpm`` the paper's bounds on the probability of a partition,
            for ``hg`` the probability of the number of shared dimensions, as in its paper;
            ``exact``: the probability of the partition itself.
        latent: Number of latent dimensions.
        shared_divergence: How often the KL divergence of a shared dimension counts for a pair.
            ``once``: as one code for both views, as in the paper's formula; ``twice``: for each
            view, as in Locatello et al. (2020). Only ``once`` rewards sharing.
        beta: Weight of the KL divergence of the codes.
        gamma: Weight of the divergence of the sizes, for ``drpm`` and ``hg``.
        delta: Weight of the divergence of the order, for ``drpm``.
        smallest_divergence: For ``drpm``: added to all divergences between views, in nats, before
            the logarithm. Without it, as in the paper, the order term does not vanish for codes
            without information, and some runs do not learn.
        draws: Number of partitions sampled to estimate the exact divergence of a pair.
        prior_log_weights: Log-weights of independent and shared dimensions in the prior.
        temperature: Temperature of the relaxation, at the start and at the end of training.
        steps_per_epoch: Number of steps per epoch; new pairs are sampled at every step.
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
        check_setting(self.training, "devices", "1 for this model", lambda count: count == 1)


@dataclass(frozen=True)
class FactorsJob(Job):
    """The settings of one run of ``drpm factors``.

    For your own pairs, a folder or file, ``shared``, ``which``, ``angles`` and ``test_pairs`` are
    None, and ``fingerprint`` is their content hash.
    """

    command: ClassVar[str] = "factors"
    section: ClassVar[str] = "factors"
    experiment: ClassVar[str] = "drpm.factors.experiment:Factors"
    help: ClassVar[str] = """Learn which factors the two images of a pair share, and how many.

    Run the same command again to resume an interrupted run. The output folder
    contains the model, figures and an HTML report, and for your own pairs
    pairs.csv, the shared dimensions of every pair.
    """
    data_option: ClassVar[bool] = True
    shortcuts: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {"method": {"help": "drpm, hg, ada or label.", "choices": get_args(Method)}}
    )

    data: str = option(
        "arm", "arm, mpi3d, or your own pairs: a folder of images or an .npz file.", choices=WORLDS
    )
    shared: str | None = option(
        None, "Number of shared factors, from 0 to 7, or mixed; not for your own pairs.", shown="3"
    )
    angles: Annotated[int, Field(ge=2, le=40)] | None = option(
        None,
        "Positions of each joint of the arm, from 2 to 40; not for your own pairs.",
        shown="40 on a GPU, else 2",
    )
    image_size: int | None = option(
        None,
        "Side of the arm's images, 16, 32 or 64 pixels, or the side to which your own images are "
        "resized, 8 to 64.",
        shown="64 on a GPU, else 32; your own are not resized",
    )
    test_pairs: Annotated[int, Field(ge=100)] | None = option(
        None, "Number of test pairs; not for your own pairs.", shown="10000 on a GPU, else 2000"
    )
    # None means random and keeps the settings of earlier runs unchanged.
    which: Literal["fixed", "random"] | None = option(
        None,
        "Which factors pairs share: random (new ones for every pair) or fixed (the first of color, "
        "shape, size, camera, background and the two axes); not for your own pairs.",
        choices=("fixed", "random"),
        shown="random",
    )
    fingerprint: str = ""
    factors: FactorsConfig = field(default_factory=FactorsConfig)

    def __post_init__(self) -> None:
        check_setting(
            self,
            "shared",
            "a number from 0 to 7 or 'mixed'",
            lambda value: value in (None, "mixed", *map(str, range(8))),
        )
        sides = f"one of {', '.join(map(str, SIDES))}"
        check_setting(self, "image_size", sides, lambda side: side in (None, *SIDES))
        if self.data == "mpi3d":
            check_setting(self, "image_size", "64 for mpi3d", lambda side: side in (None, 64))
        if self.data in WORLDS and self.factors.method == "label":
            enough = "at least 7, one for each factor, for the method 'label'"
            check_setting(self.factors, "latent", enough, lambda latent: latent >= 7)
