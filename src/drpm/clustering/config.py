"""The hyperparameters of a clustering, and the settings of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from drpm.experiments import Job, option
from drpm.training.config import TrainingConfig, check_setting, settings
from drpm.training.errors import ConfigError

Method = Literal["drpm-vc", "vade", "latent-gmm", "gmm", "contrastive-head"]
TRAINED = ("drpm-vc", "vade")  # after pretraining
Widths = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


@settings
class AutoencoderConfig:
    """The autoencoder: fully connected layers with ReLU.

    Args:
        latent: The number of latent dimensions.
        encoder: The widths of the encoder's layers.
        decoder: The widths of the decoder's layers.
        deviation: The standard deviation of a Gaussian likelihood. With 1, codes of standardized
            tables carry little information.
    """

    latent: PositiveInt = 10
    encoder: Widths = (500, 500, 2000)
    decoder: Widths = (2000, 500, 500)
    deviation: PositiveFloat = 1.0


@settings
class PretrainingConfig:
    """Pretraining of the autoencoder.

    Args:
        kind: ``contrastive``: twin-contrastive learning with reconstruction; ``reconstruction``:
            reconstruction only.
        views: The augmentation; ``auto`` depends on the shape of the data.
        instance_temperature: The temperature of the contrastive loss between instances.
        cluster_temperature: The temperature of the contrastive loss between clusters.
        training: Training settings.
    """

    kind: Literal["contrastive", "reconstruction"] = "contrastive"
    views: Literal["auto", "digits", "mnist", "fashion-mnist", "noise"] = "auto"
    instance_temperature: PositiveFloat = 0.5
    cluster_temperature: PositiveFloat = 1.0
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(epochs=200, batch_size=1024, learning_rate=1e-3)
    )


@settings
class MixtureConfig:
    """The Gaussian mixture that initializes the clusters.

    Args:
        restarts: The number of fits; the one with the highest likelihood is used.
        init: ``k-means++``: a mixture fitted to the codes; ``contrastive-head``: the moments of the
            clusters of the contrastive head; ``auto``: the head for images; for tables the clusters
            of the head or of k-means on the rows, whichever gives the codes the higher likelihood,
            and all clusters then have the same variances. ``auto`` is ``k-means++`` without
            contrastive pretraining. A latent mixture is always fitted to the codes.
        floor: Added to every variance.
        code_variance: Whether to add the posterior variance of the codes to the initial variances.
            Without it, small tables may lose clusters at the start of training.
    """

    restarts: PositiveInt = 10
    init: Literal["auto", "k-means++", "contrastive-head"] = "k-means++"
    floor: PositiveFloat = 1e-4
    code_variance: bool = False


@settings
class ClusteringConfig:
    """The hyperparameters of a clustering.

    Args:
        method: The model.
        clusters: The number of clusters.
        partition: How clusters choose the rows of a batch. ``order``: in sequence from one random
            order of all rows, as in the paper; ``affinity``: each by its own odds.
        objective: ``bounds``: the paper's loss; ``exact``: exact log-probabilities.
        likelihood: The likelihood of the data; ``auto``: Bernoulli if all values lie in [0, 1],
            else Gaussian.
        beta: The weight of the latent divergence, with an exponential warm-up from a tenth of it.
        gamma: The weight of the divergence of the sizes.
        delta: The weight of the divergence of the order.
        weights: The weights of the partition of a batch. ``responsibilities``: the mean
            responsibility r of every cluster, as in the paper; the most likely sizes are more equal
            than r. ``odds``: r / (1 - r); the most likely sizes are proportional to r.
        partitions: Partitions sampled per step.
        exact_partitions: How many of these contribute exact log-probabilities to the loss. They
            are expensive and train only the scale of the scores.
        codes: Latent codes sampled per example and step.
        temperature: The temperature of the relaxed orders, at the start and at the end.
        annealing_steps: The number of steps to the final temperature and beta.
        freeze_encoder: Whether to freeze the encoder's layers after pretraining.
        refit_every: Epochs between refits of the mixture during annealing; None for no refits.
        refit_to: ``means`` or ``samples`` of the codes. Refits to means shrink the variance of
            unused dimensions to the floor, which makes the training of an encoder diverge.
        refit_detaches_prior: Whether, after the first refit, only refits change the clusters.
        copy_mean_head: For VaDE, whether to initialize log-variances with a copy of the mean head,
            as in the authors' code, or with a small constant.
        network: The autoencoder.
        pretraining: Pretraining.
        mixture: The initial clusters.
        training: Training settings.
    """

    method: Method = "drpm-vc"
    clusters: PositiveInt = 10
    partition: Literal["order", "affinity"] = "order"
    objective: Literal["bounds", "exact"] = "bounds"
    likelihood: Literal["auto", "bernoulli", "gaussian"] = "auto"
    beta: NonNegativeFloat = 1.0
    gamma: NonNegativeFloat = 1.0
    delta: NonNegativeFloat = 0.01
    weights: Literal["responsibilities", "odds"] = "responsibilities"
    partitions: PositiveInt = 100
    exact_partitions: PositiveInt = 10
    codes: PositiveInt = 1
    temperature: tuple[PositiveFloat, PositiveFloat] = (1.0, 0.5)
    annealing_steps: PositiveInt = 100_000
    freeze_encoder: bool = True
    refit_every: PositiveInt | None = None
    refit_to: Literal["means", "samples"] = "means"
    refit_detaches_prior: bool = True
    copy_mean_head: bool = True
    network: AutoencoderConfig = field(default_factory=AutoencoderConfig)
    pretraining: PretrainingConfig = field(default_factory=PretrainingConfig)
    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            epochs=1024, batch_size=256, optimizer="adamw", learning_rate=1e-4, weight_decay=0.01
        )
    )

    def __post_init__(self) -> None:
        if self.pretraining.kind != "contrastive" and self.initial_clusters(()) == "head":
            user = "method" if self.method == "contrastive-head" else "mixture.init"
            raise ConfigError(
                f"pretraining.kind must be 'contrastive' if {user} is 'contrastive-head', "
                f"but got {self.pretraining.kind!r}."
            )
        for stage in (self.pretraining.training, self.training):
            check_setting(stage, "precision", "'32-true' for clusterings", lambda x: x == "32-true")
        if self.pretraining.training.devices != self.training.devices:
            raise ConfigError(
                "pretraining.training.devices must equal training.devices, "
                f"{self.training.devices}, but got {self.pretraining.training.devices}."
            )

    def initial_clusters(self, shape: Sequence[int]) -> Literal["mixture", "head", "best"]:
        """The initial clusters; ``best``: the more likely of the head's and those of k-means."""
        if self.method not in TRAINED:
            return "head" if self.method == "contrastive-head" else "mixture"
        if self.mixture.init != "auto":
            return "head" if self.mixture.init == "contrastive-head" else "mixture"
        if self.pretraining.kind != "contrastive":
            return "mixture"
        return "head" if len(shape) > 1 else "best"


@dataclass(frozen=True)
class ClusteringJob(Job):
    """The settings of a run of ``drpm cluster``; ``candidates`` is a range, such as ``2-12``."""

    command: ClassVar[str] = "cluster"
    section: ClassVar[str] = "clustering"
    experiment: ClassVar[str] = "drpm.clustering.experiment:Clustering"
    help: ClassVar[str] = """Cluster a data set or your own file, and sample from every cluster.

    Run the same command again to resume an interrupted run. The output folder
    contains labels.csv, the model, figures and an HTML report.
    """
    several_devices: ClassVar[bool] = True
    shortcuts: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {
            "clusters": {
                "help": "Number of clusters, or a range such as 2-12 to choose from.",
                "shown": "the number of classes, or 10",
            },
            "method": {
                "help": "drpm-vc, vade, latent-gmm, gmm or contrastive-head.",
                "choices": get_args(Method),
            },
        }
    )

    data: str = "digits"
    options: tuple[str, ...] = ()
    fingerprint: str = ""
    compare: bool = option(
        False, "Also run the other methods, with the same pretraining.", flag="compare"
    )
    min_size: int | None = option(
        None, "Smallest number of training examples in a cluster of labels.csv."
    )
    max_size: int | None = option(
        None, "Largest number of training examples in a cluster of labels.csv."
    )
    starts: int = option(
        1, "Number of starts; the one with the highest neighbor agreement (label-free) is kept."
    )
    candidates: str | None = None
    clustering: ClusteringConfig = field(default_factory=ClusteringConfig)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        text = values["clusters"] or ""
        if "-" not in text[1:]:
            return values
        most = cls(candidates=text).candidate_range[-1]
        return {**values, "candidates": text, "clusters": str(most)}

    @property
    def candidate_range(self) -> range:
        """The numbers of clusters to choose from; empty without a choice."""
        if self.candidates is None:
            return range(0)
        low, high = (int(x) if x.isdecimal() else 0 for x in self.candidates.partition("-")[::2])
        if not 2 <= low < high:
            raise ConfigError(
                "clusters must be a number, or a range from 2 or more such as 2-12, "
                f"but got {self.candidates!r}."
            )
        return range(low, high + 1)

    @property
    def needs_raw_values(self) -> bool:
        """Whether a Bernoulli likelihood needs values in [0, 1], without standardization."""
        has_likelihood = self.clustering.method != "gmm" or self.compare
        return has_likelihood and self.clustering.likelihood == "bernoulli"

    @property
    def is_stacked(self) -> bool:
        # Mixtures are not trained by steps, and seeds may choose different numbers of clusters.
        return self.clustering.method != "gmm" and self.candidates is None
