"""Clusterings as scikit-learn estimators: of tables or images, and able to make new ones."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from drpm.clustering.config import ClusteringConfig
from drpm.clustering.estimator_base import ClusteringEstimator
from drpm.clustering.fitted import FittedClustering
from drpm.distributions.validation import require_choice, require_count, require_number
from drpm.training.config import TrainingConfig

# Steps of pretraining, where their number is left open. After fewer, codes hardly tell rows apart,
# and what follows soon loses the clusters.
_LEAST_PRETRAINING = 50


class _Model(ClusteringEstimator):
    """Those with a model of their own, that is trained after the networks were."""

    pretrain_iter: int | None

    def _pretraining(self, training: TrainingConfig, rows: int) -> TrainingConfig:
        epochs = self.pretrain_iter
        if epochs is None:
            needed = math.ceil(_LEAST_PRETRAINING / math.ceil(rows / self.batch_size))
            epochs = max(self.max_iter, needed)
        return replace(training, epochs=epochs, checkpoint_every=epochs)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.pretrain_iter is not None:
            require_count("pretrain_iter", self.pretrain_iter)


class DRPMClustering(_Model):
    """Clusters as the subsets of a random partition, which a whole batch falls into at once.

    An autoencoder learns latent codes, by contrast with noisy or warped copies of the rows. The
    clusters to start from are those that the contrast itself finds where rows are images, and a
    Gaussian mixture of the codes elsewhere. Then codes, clusters and the partition of every batch
    are learned together.

    Where all values lie in [0, 1] they are the means of Bernoulli variables. Elsewhere they are
    standardised on the way in, and back on the way out: the columns of a table each for itself,
    the pixels of images all alike.

    References:
        Sutter, Ryser, Liebeskind and Vogt, *Differentiable Random Partition Models*, 2023.

    Arguments:
        n_clusters: How many clusters.
        latent_dim: Dimensions of the latent codes.
        hidden: Widths of the encoder's layers; the decoder has them in reverse.
        max_iter: Epochs of the model.
        pretrain_iter: Epochs of the autoencoder before; by default as many, or 50 steps if those
            are more.
        batch_size: Rows in a step.
        learning_rate: The size of steps; by default 3e-3 for images and 1e-3 for tables.
        beta: The weight of the latent codes' divergence from their clusters.
        objective: ``"bounds"``: the published loss; ``"exact"``: the exact mass of partitions in
            the place of its bounds.
        partitions: Partitions drawn in a step.
        likelihood: ``"bernoulli"``, ``"gaussian"``, or ``"auto"`` to decide by the values.
        warm_start: Whether another fit goes on from what the last one learned.
        device: Where it is trained; ``"auto"`` takes a GPU where there is one.
        verbose: Whether to show how far a fit is.
        random_state: Settles everything that is random.

    Attributes:
        labels_: The cluster of every training row, (n,).
        cluster_centers_: What the mean of every cluster stands for, in the shape of X.
        model_: The clustering itself.
        n_features_in_: The numbers in a row.
        n_iter_: The epochs of the last fit.

    Example:
        >>> from sklearn.datasets import make_blobs
        >>> X, _ = make_blobs(90, centers=3, random_state=0)
        >>> model = DRPMClustering(3, max_iter=5, random_state=0).fit(X)
        >>> model.predict_proba(X).shape
        (90, 3)
        >>> new, clusters = model.sample(4, cluster=2)
        >>> new.shape, clusters.tolist()
        ((4, 2), [2, 2, 2, 2])
    """

    _method = "drpm-vc"

    def __init__(
        self,
        n_clusters: int = 10,
        *,
        latent_dim: int = 10,
        hidden: tuple[int, ...] = (128, 128),
        max_iter: int = 100,
        pretrain_iter: int | None = None,
        batch_size: int = 128,
        learning_rate: float | None = None,
        beta: float = 1.0,
        objective: str = "bounds",
        partitions: int = 10,
        likelihood: str = "auto",
        warm_start: bool = False,
        device: str = "auto",
        verbose: bool = False,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_clusters,
            latent_dim=latent_dim,
            hidden=hidden,
            max_iter=max_iter,
            batch_size=batch_size,
            learning_rate=learning_rate,
            likelihood=likelihood,
            warm_start=warm_start,
            device=device,
            verbose=verbose,
            random_state=random_state,
        )
        self.pretrain_iter = pretrain_iter
        self.beta = beta
        self.objective = objective
        self.partitions = partitions

    def _check_parameters(self) -> None:
        super()._check_parameters()
        require_number("beta", self.beta, positive=False)
        require_choice("objective", self.objective, ("bounds", "exact"))
        require_count("partitions", self.partitions)

    def _config(self, rows: int, warm: bool) -> ClusteringConfig:
        return replace(
            super()._config(rows, warm),
            beta=float(self.beta),
            objective=self.objective,  # type: ignore[arg-type]  # checked already
            partitions=int(self.partitions),
            exact_partitions=int(self.partitions),
        )


class VaDE(_Model):
    """Variational deep embedding: every row has a cluster of its own, drawn independently.

    It starts as :class:`DRPMClustering` does, from pretrained codes and the clusters found with
    them, and then learns codes and clusters together. Data are treated in the same way.

    References:
        Jiang et al., *Variational deep embedding: an unsupervised and generative approach to
        clustering*, 2017.

    Arguments:
        n_clusters: How many clusters.
        latent_dim: Dimensions of the latent codes.
        hidden: Widths of the encoder's layers; the decoder has them in reverse.
        max_iter: Epochs of the model.
        pretrain_iter: Epochs of the autoencoder before; by default as many, or 50 steps if those
            are more.
        batch_size: Rows in a step.
        learning_rate: The size of steps; by default 3e-3 for images and 1e-3 for tables.
        likelihood: ``"bernoulli"``, ``"gaussian"``, or ``"auto"`` to decide by the values.
        warm_start: Whether another fit goes on from what the last one learned.
        device: Where it is trained; ``"auto"`` takes a GPU where there is one.
        verbose: Whether to show how far a fit is.
        random_state: Settles everything that is random.

    Attributes are those of :class:`DRPMClustering`.

    Example:
        >>> from sklearn.datasets import make_blobs
        >>> X, _ = make_blobs(90, centers=3, random_state=0)
        >>> VaDE(3, max_iter=5, random_state=0).fit(X).transform(X).shape
        (90, 10)
    """

    _method = "vade"

    def __init__(
        self,
        n_clusters: int = 10,
        *,
        latent_dim: int = 10,
        hidden: tuple[int, ...] = (128, 128),
        max_iter: int = 100,
        pretrain_iter: int | None = None,
        batch_size: int = 128,
        learning_rate: float | None = None,
        likelihood: str = "auto",
        warm_start: bool = False,
        device: str = "auto",
        verbose: bool = False,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_clusters,
            latent_dim=latent_dim,
            hidden=hidden,
            max_iter=max_iter,
            batch_size=batch_size,
            learning_rate=learning_rate,
            likelihood=likelihood,
            warm_start=warm_start,
            device=device,
            verbose=verbose,
            random_state=random_state,
        )
        self.pretrain_iter = pretrain_iter

    def _config(self, rows: int, warm: bool) -> ClusteringConfig:
        # Variances that start as large as means would drown the codes of a short training.
        return replace(super()._config(rows, warm), freeze_encoder=False, copy_mean_head=False)


class LatentGMM(ClusteringEstimator):
    """A Gaussian mixture of the latent codes that an autoencoder has learned by itself.

    Data are treated as in :class:`DRPMClustering`, which starts from these clusters where the data
    are a table.

    Arguments:
        n_clusters: How many clusters.
        latent_dim: Dimensions of the latent codes.
        hidden: Widths of the encoder's layers; the decoder has them in reverse.
        max_iter: Epochs of the autoencoder.
        batch_size: Rows in a step.
        learning_rate: The size of steps; by default 3e-3 for images and 1e-3 for tables.
        likelihood: ``"bernoulli"``, ``"gaussian"``, or ``"auto"`` to decide by the values.
        warm_start: Whether another fit goes on from what the last one learned.
        device: Where it is trained; ``"auto"`` takes a GPU where there is one.
        verbose: Whether to show how far a fit is.
        random_state: Settles everything that is random.

    Attributes are those of :class:`DRPMClustering`.

    Example:
        >>> from sklearn.datasets import make_blobs
        >>> X, _ = make_blobs(90, centers=3, random_state=0)
        >>> LatentGMM(3, max_iter=5, random_state=0).fit_predict(X).shape
        (90,)
    """

    _method = "latent-gmm"

    def __init__(
        self,
        n_clusters: int = 10,
        *,
        latent_dim: int = 10,
        hidden: tuple[int, ...] = (128, 128),
        max_iter: int = 100,
        batch_size: int = 128,
        learning_rate: float | None = None,
        likelihood: str = "auto",
        warm_start: bool = False,
        device: str = "auto",
        verbose: bool = False,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_clusters,
            latent_dim=latent_dim,
            hidden=hidden,
            max_iter=max_iter,
            batch_size=batch_size,
            learning_rate=learning_rate,
            likelihood=likelihood,
            warm_start=warm_start,
            device=device,
            verbose=verbose,
            random_state=random_state,
        )


def estimator_of(found: FittedClustering, names: Sequence[str] = ()) -> ClusteringEstimator | None:
    """A clustering of a run as the estimator of its method, but for the labels of its rows.

    Arguments:
        found: The clustering.
        names: Of the columns, where they have names.

    Returns:
        The estimator, with those of the run's settings that it knows; none where a method has none.
    """
    config, autoencoder = found.config, found.autoencoder
    kinds: dict[str, type[ClusteringEstimator]] = {
        each._method: each for each in (DRPMClustering, VaDE, LatentGMM)
    }
    kind = kinds.get(config.method)
    if kind is None or autoencoder is None:
        return None
    stage = config.pretraining.training if kind is LatentGMM else config.training
    settings = {
        "n_clusters": found.clusters,
        "latent_dim": config.network.latent,
        "hidden": config.network.encoder,
        "max_iter": stage.epochs,
        "pretrain_iter": config.pretraining.training.epochs,
        "batch_size": stage.batch_size,
        "learning_rate": stage.learning_rate,
        "beta": config.beta,
        "objective": config.objective,
        "partitions": config.partitions,
        "likelihood": autoencoder.likelihood,
        "random_state": config.training.seed % 2**32,  # as far as numpy's seeds go
    }
    known = [name for name in settings if name in kind._get_param_names()]
    columns = found.shape.numel()
    return kind._build(
        {
            "parameters": {name: settings[name] for name in known},
            "shape": found.shape,
            "likelihood": autoencoder.likelihood,
            "labels": [],
            "iterations": stage.epochs,
            "names": list(names),
        },
        replace(
            found.to("cpu"),
            shift=torch.zeros(columns).double() if found.shift is None else found.shift,
            scale=torch.ones(columns).double() if found.scale is None else found.scale,
        ),
    )
