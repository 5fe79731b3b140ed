"""Clusterings as scikit-learn estimators of tables and images, with sampling."""

from dataclasses import dataclass
from typing import Any

from drpm.clustering.estimator_base import ClusteringEstimator


@dataclass(eq=False, repr=False, kw_only=True)
class DRPMClustering(ClusteringEstimator):
    """Clustering with a random partition model (DRPM-VC).

    A variational autoencoder whose prior partitions a whole batch at once. The networks are
    pretrained by contrastive learning. Initial clusters are those of the contrastive cluster head
    for images; for tables they are those of the head or of k-means on the rows, whichever gives the
    latent codes the higher likelihood, and all clusters have the same variances.

    Unlike in the paper, the most likely sizes of partitions are those of the clusters. The paper's
    are more equal, which moves rows from large to small clusters.

    If all values of X lie in [0, 1], the likelihood is Bernoulli. Otherwise it is Gaussian, and
    data are standardized: each column of a table separately, all pixels of images together. Columns
    of a table are scaled by their fourth moments, so that rare large values count less.

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
        partition: How clusters choose the rows of a batch. ``"order"``: in sequence from one random
            order of all rows, as in the paper; ``"affinity"``: each by its own odds.
        objective: ``"bounds"``: the paper's loss; ``"exact"``: exact probabilities of partitions.
        partitions: The number of partitions sampled per step.
        likelihood: ``"bernoulli"``, ``"gaussian"`` or ``"auto"``, which depends on the values of X.
        size_min: The smallest number of training rows in a cluster. With limits, ``labels_`` is the
            feasible assignment of largest total log-probability; :meth:`predict` ignores limits.
        size_max: The largest number of training rows in a cluster.
        n_init: The number of starts, trained together. The one whose clusters most often contain
            the nearest neighbors of their rows is kept; ``model_.facts["starts"]`` has all scores.
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

    pretrain_iter: int | None = None
    beta: float = 1.0
    partition: str = "order"
    objective: str = "bounds"
    partitions: int = 10

    def _model_settings(self) -> dict[str, Any]:
        return {
            "beta": self.beta,
            "partition": self.partition,
            "objective": self.objective,
            "partitions": self.partitions,
            "exact_partitions": self.partitions,
            "weights": "odds",
        }


@dataclass(eq=False, repr=False, kw_only=True)
class VaDE(ClusteringEstimator):
    """Variational deep embedding: a variational autoencoder with independent clusters.

    Initialization and data are as in :class:`DRPMClustering`.

    References:
        Jiang et al., *Variational deep embedding: an unsupervised and generative approach to
        clustering*, 2017.

    Args are those of :class:`DRPMClustering` except ``beta``, ``partition``, ``objective`` and
    ``partitions``; attributes are the same.

    Example:
        >>> from sklearn.datasets import make_blobs
        >>> X, _ = make_blobs(90, centers=3, random_state=0)
        >>> VaDE(3, max_iter=5, random_state=0).fit(X).transform(X).shape
        (90, 10)
    """

    _method = "vade"

    pretrain_iter: int | None = None

    def _model_settings(self) -> dict[str, Any]:
        # Short trainings do not recover from initial variances as large as the means.
        return {"freeze_encoder": False, "copy_mean_head": False}


class LatentGMM(ClusteringEstimator):
    """A Gaussian mixture of the latent codes of a contrastively trained autoencoder.

    Data are treated as in :class:`DRPMClustering`.

    Args are those of :class:`DRPMClustering` except ``pretrain_iter``, ``beta``, ``partition``,
    ``objective`` and ``partitions``; attributes are the same.

    Example:
        >>> from sklearn.datasets import make_blobs
        >>> X, _ = make_blobs(90, centers=3, random_state=0)
        >>> LatentGMM(3, max_iter=5, random_state=0).fit_predict(X).shape
        (90,)
    """

    _method = "latent-gmm"
