"""The hyperparameters of a clustering, and the settings of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal, get_args

from drpm.experiments.jobs import Job, option
from drpm.training.config import TrainingConfig, check_setting, check_types
from drpm.training.errors import ConfigError

Method = Literal["drpm-vc", "vade", "latent-gmm", "gmm", "contrastive-head"]
TRAINED = ("drpm-vc", "vade")  # after pretraining, from clusters to start from
Likelihood = Literal["auto", "bernoulli", "gaussian"]
Views = Literal["auto", "digits", "mnist", "fashion-mnist", "noise"]


@dataclass(frozen=True)
class NetworkConfig:
    """The autoencoder: fully connected, with ReLU between layers.

    Arguments:
        latent: Dimensions of the latent space.
        encoder: Widths of the encoder's layers.
        decoder: Widths of the decoder's layers.
        deviation: Of a Gaussian likelihood. Where columns have a deviation of one, as those of
            tables do, one leaves the codes next to nothing to tell.
    """

    latent: int = 10
    encoder: tuple[int, ...] = (500, 500, 2000)
    decoder: tuple[int, ...] = (2000, 500, 500)
    deviation: float = 1.0

    def __post_init__(self) -> None:
        check_types(self)
        check_setting(self, "latent", "at least 1", lambda value: value >= 1)
        check_setting(self, "deviation", "positive", lambda value: value > 0)
        for name in ("encoder", "decoder"):
            check_setting(
                self,
                name,
                "one or more widths of at least 1",
                lambda widths: widths and all(width >= 1 for width in widths),
            )


@dataclass(frozen=True)
class PretrainingConfig:
    """What happens before there are clusters.

    Arguments:
        kind: ``contrastive``: instances and clusters told apart across two views, with
            reconstruction; ``reconstruction``: that alone.
        views: How the second view is made from the first; ``auto`` by the shape of the data.
        instance_temperature: Of the loss between instances.
        cluster_temperature: Of the loss between clusters.
        training: How it is trained.
    """

    kind: Literal["contrastive", "reconstruction"] = "contrastive"
    views: Views = "auto"
    instance_temperature: float = 0.5
    cluster_temperature: float = 1.0
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(epochs=200, batch_size=1024, learning_rate=1e-3)
    )

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("instance_temperature", "cluster_temperature"):
            check_setting(self, name, "positive", lambda value: value > 0)


@dataclass(frozen=True)
class MixtureConfig:
    """The Gaussian mixture that the clusters start from.

    Arguments:
        restarts: Independent starts, of which the likeliest is kept.
        init: Where its iterations start. ``k-means++``: from seeds alone; ``kmeans``: from Lloyd's
            iterations after them; ``contrastive-head``: no iterations, but the Gaussians of what
            the cluster head of contrastive pretraining says, for models that are trained from
            there; a latent mixture is fitted to the codes, from ``k-means++``. ``auto``: the head
            for images, whose warped copies teach it what they show, and ``k-means++`` for rows of
            numbers, of whose noisy copies it learns less than the codes tell.
        floor: What is added to all variances.
        code_variance: Whether models that are trained from there start with clusters as wide as
            their codes, not only as the means of these: in dimensions where all means agree,
            clusters are thin at first, and while they widen a small table may lose some of them.
    """

    restarts: int = 10
    init: Literal["auto", "k-means++", "contrastive-head"] = "k-means++"
    floor: float = 1e-4
    code_variance: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        check_setting(self, "restarts", "at least 1", lambda value: value >= 1)
        check_setting(self, "floor", "positive", lambda value: value > 0)


@dataclass(frozen=True)
class ClusteringConfig:
    """A clustering from raw data to clusters.

    Arguments:
        method: The model.
        clusters: How many.
        objective: ``bounds``: the paper's loss; ``exact``: the exact mass in their place.
        likelihood: Of the data given the latent code; ``auto``: Bernoulli where all values lie in
            [0, 1], else Gaussian.
        beta: The weight of the latent divergence; it grows from a tenth of it, exponentially.
        gamma: The weight of the sizes' divergence.
        delta: The weight of the order's divergence.
        partitions: Partitions drawn in a step.
        exact_partitions: Of these, how many the exact objective takes the mass of. All that their
            gradient moves is one number, the scale of the scores, and each costs a good part of
            a step.
        codes: Latent codes drawn for an example in a step.
        temperature: Of the relaxed orders, at the start and at the end.
        annealing_steps: Steps over which temperature and beta reach their ends.
        freeze_encoder: Whether the encoder's layers stay as pretraining left them.
        refit_every: Epochs from one fit of the mixture to the next while the temperature falls;
            none for the first one alone.
        refit_to: What it is fitted to: ``means`` of the examples' codes, or ``samples`` of them.
            Means leave out how far codes spread: in a dimension that a model makes no use of, all
            means agree, the fitted variance falls to the floor, and a model whose encoder is
            trained is ruined by the gradient of that.
        refit_detaches_prior: Whether, from the first refit on, the clusters move by refits alone.
        copy_mean_head: For VaDE, whether log-variances start as a copy of the means, as in the
            authors' code, instead of all equal and small.
        network: The autoencoder.
        pretraining: What comes first.
        mixture: The start of the clusters.
        training: How the model is trained.
    """

    method: Method = "drpm-vc"
    clusters: int = 10
    objective: Literal["bounds", "exact"] = "bounds"
    likelihood: Likelihood = "auto"
    beta: float = 1.0
    gamma: float = 1.0
    delta: float = 0.01
    partitions: int = 100
    exact_partitions: int = 10
    codes: int = 1
    temperature: tuple[float, float] = (1.0, 0.5)
    annealing_steps: int = 100_000
    freeze_encoder: bool = True
    refit_every: int | None = None
    refit_to: Literal["means", "samples"] = "means"
    refit_detaches_prior: bool = True
    copy_mean_head: bool = True
    network: NetworkConfig = field(default_factory=NetworkConfig)
    pretraining: PretrainingConfig = field(default_factory=PretrainingConfig)
    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            epochs=1024, batch_size=256, optimizer="adamw", learning_rate=1e-4, weight_decay=0.01
        )
    )

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("clusters", "partitions", "exact_partitions", "codes", "annealing_steps"):
            check_setting(self, name, "at least 1", lambda value: value >= 1)
        for name in ("beta", "gamma", "delta"):
            check_setting(self, name, "at least 0", lambda value: value >= 0)
        check_setting(
            self, "temperature", "two positive numbers", lambda pair: all(x > 0 for x in pair)
        )
        check_setting(
            self, "refit_every", "at least 1 or none", lambda value: value is None or value >= 1
        )
        head_is_asked_for = self.method == "contrastive-head" or (
            self.method in TRAINED and self.mixture.init == "contrastive-head"
        )
        if head_is_asked_for and self.pretraining.kind != "contrastive":
            user, way_out = "method", ""
            if self.method != "contrastive-head":
                user, way_out = "mixture.init", "; or set mixture.init to 'k-means++'"
            raise ConfigError(
                f"pretraining.kind must be 'contrastive' where {user} is 'contrastive-head', "
                f"but got {self.pretraining.kind!r}{way_out}."
            )
        for stage in (self.pretraining.training, self.training):
            check_setting(stage, "precision", "'32-true' for clusterings", lambda x: x == "32-true")
        if self.pretraining.training.devices != self.training.devices:
            raise ConfigError(
                "pretraining.training.devices must be that of training, "
                f"{self.training.devices}, but got {self.pretraining.training.devices}."
            )

    def starts_at_head(self, shape: Sequence[int]) -> bool:
        """Whether clusters of inputs are, at first or for good, those of the contrastive head.

        Arguments:
            shape: Of an input.
        """
        if self.method not in TRAINED:
            return self.method == "contrastive-head"
        learned = self.pretraining.kind == "contrastive" and len(shape) > 1
        return self.mixture.init == "contrastive-head" or (self.mixture.init == "auto" and learned)


@dataclass(frozen=True)
class ClusteringJob(Job):
    """The settings of one run of ``drpm cluster``.

    Args:
        data: The name of a data set, or a path.
        options: Options of the data, as ``name=value``.
        fingerprint: The content hash of the user's own data.
        compare: Whether to run the other methods as well, from the same pretraining.
        clustering: The hyperparameters.
    """

    command: ClassVar[str] = "cluster"
    section: ClassVar[str] = "clustering"
    experiment: ClassVar[str] = "drpm.clustering.experiment:Clustering"
    example_preset: ClassVar[str] = "paper-cluster-mnist"
    help: ClassVar[str] = """Cluster a data set, or your own file, and generate from every cluster.

    Interrupted runs are resumed by the same command. The folder ends up with
    labels.csv, the model, the figures and a page that shows them.
    """
    stacks: ClassVar[bool] = True
    several_devices: ClassVar[bool] = True
    shortcuts: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {
            "clusters": {
                "help": "Number of clusters.",
                "least": 1,
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
        False, "Run the other methods as well, from the same pretraining.", flag="compare"
    )
    clustering: ClusteringConfig = field(default_factory=ClusteringConfig)

    @property
    def is_stacked(self) -> bool:
        return self.clustering.method != "gmm"  # which is fitted in closed steps
