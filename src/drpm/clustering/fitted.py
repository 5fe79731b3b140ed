"""Fitted clusterings: prediction, sampling, saving, loading and scores."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, linprog
from scipy.sparse import eye_array, kron, vstack
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix
from torch import Tensor, nn

from drpm.clustering.config import ClusteringConfig
from drpm.clustering.mixtures import Mixture
from drpm.clustering.models import Autoencoder, divergences, in_batches
from drpm.clustering.pretraining import projector
from drpm.data.types import scale_shapes, scaled_rows
from drpm.distributions.partitions import RandomPartition
from drpm.distributions.validation import require_count
from drpm.training import config as configs
from drpm.training.checkpoint import described, load_model, load_modules, save_model
from drpm.training.devices import seeded
from drpm.training.errors import RunError


@dataclass(frozen=True)
class FittedClustering:
    """A fitted clustering: Gaussians in the latent space or the space of the rows.

    Args:
        config: The hyperparameters.
        shape: The shape of an input; a row is a flattened input.
        mixture: One Gaussian per cluster.
        autoencoder: The networks; None if clusters are Gaussians of the rows.
        head: The contrastive cluster head, if it predicts the clusters.
        shift: (d,) on the CPU, subtracted from data to get rows; None if data are not scaled.
        scale: (d,) on the CPU, the divisor after that.
        facts: Additional JSON data: ``labels`` of the training rows, ``names`` of the columns,
            ``parameters`` of the estimator.
    """

    config: ClusteringConfig
    shape: torch.Size
    mixture: Mixture
    autoencoder: Autoencoder | None = None
    head: nn.Module | None = None
    shift: Tensor | None = None
    scale: Tensor | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.mixture.means.device

    @property
    def clusters(self) -> int:
        return self.mixture.means.shape[-2]

    @property
    def likelihood(self) -> str:
        """``"bernoulli"`` or ``"gaussian"``; empty without networks."""
        return "" if self.autoencoder is None else self.autoencoder.likelihood

    def to_rows(self, data: Tensor | NDArray[Any]) -> Tensor:
        """Flatten and scale data (n, d) or (n, ...) to rows (n, d) for all other methods."""
        return scaled_rows("data", data, self.shape, self.shift, self.scale).to(self.mixture.means)

    def from_rows(self, rows: Tensor) -> Tensor:
        """Invert :meth:`to_rows`: undo the scaling, in the shape of the inputs."""
        if self.shift is not None and self.scale is not None:
            # In double precision: float32 would round time stamps to minutes.
            rows = rows.cpu().double() * self.scale + self.shift
        return rows.reshape(-1, *self.shape)

    @torch.no_grad()
    def embed(self, rows: Tensor) -> Tensor:
        """The mean code of every row; without networks, the row itself."""
        if self.autoencoder is None:
            return rows
        mean, encoder = self.autoencoder.mean, self.autoencoder.encoder
        return in_batches(lambda part: mean(encoder(part)), rows)

    @torch.no_grad()
    def predict_log_proba(self, rows: Tensor, *, sampled: bool = False) -> Tensor:
        """The log-probability of every cluster given each row, (n, K).

        Args:
            rows: (n, d).
            sampled: Whether VaDE samples the codes, as in the paper's scores, or uses their means.
        """
        generator = None
        if sampled and self.config.method == "vade":
            generator = torch.Generator(self.device).manual_seed(0)  # the same at every call

        def logits(points: Tensor) -> Tensor:
            if self.autoencoder is not None:
                features = self.autoencoder.encoder(points)
                if self.head is not None:
                    scores: Tensor = self.head(features)
                    return scores
                points = self.autoencoder.mean(features)
                if generator is not None:
                    points = self.autoencoder.posterior(features).sample((), generator)
            densities = self.mixture.log_densities(points)
            # The partition model ignores the weights for single rows.
            is_partition = self.config.method == "drpm-vc"
            return densities if is_partition else densities + self.mixture.log_weights

        return in_batches(logits, rows).log_softmax(-1)

    def predict_proba(self, rows: Tensor) -> Tensor:
        """The probability of every cluster given each row, (n, K)."""
        return self.predict_log_proba(rows).exp()

    def predict(self, rows: Tensor, *, sampled: bool = False) -> Tensor:
        """The most likely cluster of every row."""
        return self.predict_log_proba(rows, sampled=sampled).exp().argmax(-1)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """The mean row of every code."""
        return codes if self.autoencoder is None else self.autoencoder.decode(codes)

    def sample(self, clusters: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Sample a row from each of the given clusters (m,)."""
        means, variances = self.mixture.means[clusters], self.mixture.variances[clusters]
        return self.decode(torch.normal(means, variances.sqrt(), generator=generator))

    def draw_partition(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw the clusters of ``count`` rows from the prior over partitions."""
        scores = torch.zeros(count, dtype=torch.float64, device=self.device)
        law = RandomPartition(scores, self.mixture.log_weights.double())
        return law.sample(generator=generator).argmax(-2)

    @torch.no_grad()
    def lower_bounds(self, rows: Tensor) -> Tensor:
        """The evidence lower bound (ELBO) of every row, (n,); without networks, the log-density.

        The prior is a Gaussian mixture with independent clusters, also for DRPM-VC. The constant of
        a Gaussian likelihood is omitted.
        """
        if self.autoencoder is None:
            mixture = Mixture(*(x.double() for x in self.mixture))
            found = in_batches(lambda part: mixture.log_prob(part.double()), rows, 1024)
            return found.to(rows.dtype)
        autoencoder = self.autoencoder
        generator = torch.Generator(self.device).manual_seed(0)

        def bound(part: Tensor) -> Tensor:
            posterior = autoencoder.posterior(autoencoder.encoder(part))
            fit = autoencoder.log_likelihood(part, posterior.sample((), generator))
            log_weights = self.mixture.log_weights
            log_probs = (self.mixture.log_densities(posterior.mean) + log_weights).log_softmax(-1)
            cost = divergences(posterior, self.mixture) + log_probs - log_weights
            return fit - (log_probs.exp() * cost).sum(-1)

        return in_batches(bound, rows)

    def to(self, target: torch.device | str | torch.dtype) -> "FittedClustering":
        """A copy on another device or in another precision."""
        return replace(
            self,
            mixture=Mixture(*(x.to(target) for x in self.mixture)),
            # Copies, because modules are moved in place.
            autoencoder=copy.deepcopy(self.autoencoder).to(target) if self.autoencoder else None,
            head=copy.deepcopy(self.head).to(target) if self.head else None,
        )

    def save(self, folder: str | Path) -> None:
        """Save to a folder, as safetensors and JSON."""
        tensors = {f"mixture.{name}": x for name, x in self.mixture._asdict().items()}
        for name, module in (("autoencoder", self.autoencoder), ("head", self.head)):
            if module is not None:
                tensors |= {f"{name}.{key}": x for key, x in module.state_dict().items()}
        if self.shift is not None and self.scale is not None:
            tensors |= {"shift": self.shift, "scale": self.scale}
        description = {
            "kind": "clustering",
            "config": configs.dumps(self.config),
            "shape": list(self.shape),
            "likelihood": self.likelihood,
            "facts": dict(self.facts),
        }
        save_model(Path(folder), tensors, description)


def load_clustering(folder: str | Path) -> FittedClustering:
    """Load a clustering of any method, such as ``out/cluster/model``, without pickle."""
    tensors, description = load_model(folder, "clustering")
    modules: dict[str, nn.Module] = {}
    with described(folder), seeded(0):
        config = configs.loads(ClusteringConfig, description["config"])
        shape = torch.Size(description["shape"])
        clusters, columns = config.clusters, shape.numel()
        if config.method != "gmm":
            likelihood = description["likelihood"]
            modules["autoencoder"] = Autoencoder(columns, config.network, likelihood)
        if config.method == "contrastive-head":
            modules["head"] = projector(config.network.encoder[-1], clusters)
    dims = config.network.latent if modules else columns
    sides = {"log_weights": (clusters,), "means": (clusters, dims), "variances": (clusters, dims)}
    others = {f"mixture.{name}": side for name, side in sides.items()}
    prefixed = {f"{name}.": module for name, module in modules.items()}
    load_modules(folder, tensors, prefixed, others | scale_shapes(tensors, columns))
    return FittedClustering(
        config,
        shape,
        Mixture(*(tensors[name] for name in others)),
        shift=tensors.get("shift"),
        scale=tensors.get("scale"),
        facts=description.get("facts", {}),
        **modules,  # type: ignore[arg-type]
    )


def check_limits(rows: int, clusters: int, **limits: int | None) -> None:
    """Raise if the smallest and the largest cluster size, passed by name, are infeasible."""
    (lowest, low), (highest, high) = limits.items()
    for name, limit in limits.items():
        if limit is not None:
            require_count(name, limit)
    share, least = f"since {clusters} clusters share {rows} rows", -(-rows // clusters)
    if low is not None and low * clusters > rows:
        raise ValueError(f"{lowest} must be at most {rows // clusters}, {share}, but got {low}.")
    if high is not None and high * clusters < rows:
        raise ValueError(f"{highest} must be at least {least}, {share}, but got {high}.")


def assign(log_probs: Tensor, minimum: int | None, maximum: int | None) -> Tensor:
    """The clusters (n,) of largest total log-probability (n, K) within size limits."""
    if minimum is None and maximum is None:
        return log_probs.argmax(-1)
    # A transportation problem, whose vertices are integral: the simplex method is exact.
    rows, clusters = log_probs.shape
    sizes = kron(np.ones((1, rows)), eye_array(clusters), format="csr")
    low, high = minimum or 0, maximum or rows
    found = linprog(  # type: ignore[call-overload]  # its stubs know no sparse matrices
        -log_probs.numpy().ravel(),
        A_ub=vstack([sizes, -sizes]),
        b_ub=np.repeat([high, -low], clusters),
        A_eq=kron(eye_array(rows), np.ones((1, clusters)), format="csr"),
        b_eq=np.ones(rows),
        method="highs-ds",
    )
    if found.status != 0:
        raise RunError(f"The clusters could not be assigned within limits: {found.message}")
    return torch.from_numpy(found.x).reshape(rows, clusters).argmax(-1)


def clustering_scores(labels: Any, clusters: Any) -> dict[str, float]:
    """Scores of clusters (n,); the accuracy is for the best one-to-one matching to labels."""
    pair = [x.cpu().numpy() if isinstance(x, Tensor) else x for x in (labels, clusters)]
    table = contingency_matrix(*pair)
    return {
        "nmi": float(normalized_mutual_info_score(*pair)),
        "ari": float(adjusted_rand_score(*pair)),
        "accuracy": float(table[linear_sum_assignment(table, maximize=True)].sum() / table.sum()),
    }
