"""Clusterings as scikit-learn estimators of tables and images, with sampling."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drpm.clustering.estimator_base import ClusteringEstimator
from drpm.clustering.fitted import FittedClustering
from drpm.distributions.validation import require_choice, require_count, require_number

# Default steps of pretraining. After fewer, codes hardly separate the rows, and clusters are lost.
_LEAST_PRETRAINING = 50


@dataclass(eq=False, repr=False, kw_only=True)
class _TrainedEstimator(ClusteringEstimator):
    """Base class of models that are trained after pretraining."""

    pretrain_iter: int | None = None

    def _pretraining_epochs(self, rows: int) -> int:
        if self.pretrain_iter is not None:
            return self.pretrain_iter
        needed = math.ceil(_LEAST_PRETRAINING / math.ceil(rows / self.batch_size))
        return max(self.max_iter, needed)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.pretrain_iter is not None:
            require_count("pretrain_iter", self.pretrain_iter)


@dataclass(eq=False, repr=False, kw_only=True)
class DRPMClustering(_TrainedEstimator):
    """Clustering with a random partition model (DRPM-VC).

    A variational autoencoder whose prior partitions a whole batch at once. The networks are
    pretrained by contrastive learning. Initial clusters are those of the contrastive cluster head
    for images, and a Gaussian mixture of the latent codes for tables.

    If all values of X lie in [0, 1], the likelihood is Bernoulli. Otherwise it is Gaussian, and
    data are standardized: each column of a table separately, all pixels of images together.

    References:
        Sutter, Ryser, Liebeskind and Vogt, *Differentiable Random Partition Models*, 2023.

    Args:
        n_clusters: The number of clusters.
        latent_dim: The number of latent dimensions.
        hidden: The widths of the encoder's hidden layers; the decoder has them in reverse order.
        max_iter: The number of training epochs.
        pretrain_iter: The number of pretraining epochs; by default ``max_iter``, but at least 50
            steps.
        batch_size: The number of rows in a batch.
        learning_rate: The learning rate; by default 3e-3 for images and 1e-3 for tables.
        beta: The weight of the KL divergence of the latent codes.
        objective: ``"bounds"``: the published loss; ``"exact"``: with the exact probability of
            partitions instead of bounds.
        partitions: The number of partitions sampled per step.
        likelihood: ``"bernoulli"``, ``"gaussian"`` or ``"auto"``, which depends on the values of X.
        warm_start: Whether ``fit`` continues from the last fit.
        device: The device of the training; ``"auto"`` uses a GPU if there is one.
        verbose: Whether to show progress.
        random_state: The seed or generator of all random numbers.

    Attributes:
        labels_: The cluster of every training row, (n,).
        cluster_centers_: The decoded mean of every cluster, in the shape of X.
        model_: The fitted model, a :class:`~drpm.clustering.fitted.FittedClustering`.
        n_features_in_: The number of features of a row.
        n_iter_: The number of epochs of the last fit.

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

    beta: float = 1.0
    objective: str = "bounds"
    partitions: int = 10

    def _check_parameters(self) -> None:
        super()._check_parameters()
        require_number("beta", self.beta, positive=False)
        require_choice("objective", self.objective, ("bounds", "exact"))
        require_count("partitions", self.partitions)

    def _model_settings(self) -> dict[str, Any]:
        partitions = int(self.partitions)
        return {
            "beta": float(self.beta),
            "objective": self.objective,
            "partitions": partitions,
            "exact_partitions": partitions,
        }


@dataclass(eq=False, repr=False, kw_only=True)
class VaDE(_TrainedEstimator):
    """Variational deep embedding: a variational autoencoder with independent clusters.

    Initialization and data are as in :class:`DRPMClustering`.

    References:
        Jiang et al., *Variational deep embedding: an unsupervised and generative approach to
        clustering*, 2017.

    Args are those of :class:`DRPMClustering` except ``beta``, ``objective`` and ``partitions``;
    attributes are the same.

    Example:
        >>> from sklearn.datasets import make_blobs
        >>> X, _ = make_blobs(90, centers=3, random_state=0)
        >>> VaDE(3, max_iter=5, random_state=0).fit(X).transform(X).shape
        (90, 10)
    """

    _method = "vade"

    def _model_settings(self) -> dict[str, Any]:
        # A short training does not recover from variances that start as large as the means.
        return {"freeze_encoder": False, "copy_mean_head": False}


class LatentGMM(ClusteringEstimator):
    """A Gaussian mixture of the latent codes of a contrastively trained autoencoder.

    Data are treated as in :class:`DRPMClustering`.

    Args are those of :class:`DRPMClustering` except ``pretrain_iter``, ``beta``, ``objective`` and
    ``partitions``; attributes are the same.

    Example:
        >>> from sklearn.datasets import make_blobs
        >>> X, _ = make_blobs(90, centers=3, random_state=0)
        >>> LatentGMM(3, max_iter=5, random_state=0).fit_predict(X).shape
        (90,)
    """

    _method = "latent-gmm"


def as_estimator(found: FittedClustering, names: Sequence[str] = ()) -> ClusteringEstimator | None:
    """The clustering of a run as an estimator, without labels.

    Args:
        found: The clustering.
        names: The names of the columns, if they have any.

    Returns:
        The estimator of the method; None if it has none.
    """
    config = found.config
    kinds: dict[str, type[ClusteringEstimator]] = {
        kind._method: kind for kind in (DRPMClustering, VaDE, LatentGMM)
    }
    kind = kinds.get(config.method)
    if kind is None or found.autoencoder is None:
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
        "likelihood": found.autoencoder.likelihood,
        "random_state": config.training.seed % 2**32,  # the range of numpy's seeds
    }
    known = [name for name in settings if name in kind._get_param_names()]
    description = {
        "parameters": {name: settings[name] for name in known},
        "labels": [],
        "iterations": stage.epochs,
        "names": list(names),
    }
    return kind._build(description, found.to("cpu"))
