"""A finished clustering: what it says of new rows, and what it can make."""

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from drpm.clustering.config import ClusteringConfig
from drpm.clustering.mixtures import Mixture
from drpm.clustering.networks import Autoencoder
from drpm.clustering.pretraining import projector
from drpm.clustering.prior import divergences, log_densities
from drpm.data.preprocessing import scale_shapes, scaled_rows
from drpm.distributions.partitions import RandomPartition
from drpm.training import config as configs
from drpm.training.checkpoint import load_model, load_modules, save_model
from drpm.training.errors import RunError
from drpm.training.turns import unseeded

ESTIMATOR_FILE = "estimator.json"  # beside a clustering that is an estimator

_ROWS_AT_ONCE = 8192


@dataclass(frozen=True)
class FittedClustering:
    """Clusters as Gaussians, in the space of codes or of the rows themselves.

    Arguments:
        config: The settings it was made with.
        shape: The shape of an input, which a row is the flattened form of.
        mixture: One Gaussian a cluster.
        autoencoder: Between rows and codes; none where clusters live among the rows.
        head: The cluster head of contrastive pretraining, where that decides.
        shift: (d,) on the CPU, what data have taken off to become rows; none where they are rows
            as they come.
        scale: (d,) on the CPU, what they are then divided by.
    """

    config: ClusteringConfig
    shape: torch.Size
    mixture: Mixture
    autoencoder: Autoencoder | None = None
    head: nn.Module | None = None
    shift: Tensor | None = None
    scale: Tensor | None = None

    @property
    def device(self) -> torch.device:
        return self.mixture.means.device

    @property
    def clusters(self) -> int:
        return self.mixture.means.shape[-2]

    def to_rows(self, data: Tensor | NDArray[Any]) -> Tensor:
        """(n, d): rows as everything here takes them, from data as their owner has them.

        Arguments:
            data: (n, d), or (n, ...) with each of the clustering's shape.
        """
        rows = scaled_rows("data", data, self.shape, self.shift, self.scale)
        return rows.to(self.mixture.means)

    @torch.no_grad()
    def embed(self, rows: Tensor) -> Tensor:
        """The mean code of every row."""
        if self.autoencoder is None:
            return rows
        autoencoder = self.autoencoder
        return torch.cat(
            [autoencoder.mean(autoencoder.encoder(part)) for part in rows.split(_ROWS_AT_ONCE)]
        )

    @torch.no_grad()
    def chances(self, rows: Tensor, *, sampled: bool = True) -> Tensor:
        """(n, K): how likely every cluster is for every row.

        Arguments:
            rows: (n, d).
            sampled: Whether VaDE judges a row by a draw of its code, as the paper has it, instead
                of the mean, which depends on no other row.
        """
        if self.head is not None:
            assert self.autoencoder is not None
            encoder, head = self.autoencoder.encoder, self.head
            parts = [head(encoder(part)).softmax(-1) for part in rows.split(_ROWS_AT_ONCE)]
            return torch.cat(parts)
        points = self.embed(rows)
        if self.config.method == "vade" and sampled:
            points = self._sampled_codes(rows)
        scores = torch.cat(
            [log_densities(part, self.mixture) for part in points.split(_ROWS_AT_ONCE)]
        )
        # The partition model knows no weights of single rows; independent clusters do.
        if self.config.method != "drpm-vc":
            scores = scores + self.mixture.log_weights
        return scores.softmax(-1)

    def _sampled_codes(self, rows: Tensor) -> Tensor:
        """One code a row, the same at every call."""
        assert self.autoencoder is not None
        autoencoder = self.autoencoder
        generator = torch.Generator(self.device).manual_seed(0)
        return torch.cat(
            [
                autoencoder.posterior(autoencoder.encoder(part)).sample((), generator)
                for part in rows.split(_ROWS_AT_ONCE)
            ]
        )

    def predict(self, rows: Tensor) -> Tensor:
        """The likeliest cluster of every row."""
        return self.chances(rows).argmax(-1)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """The row of every code."""
        return codes if self.autoencoder is None else self.autoencoder.decode(codes)

    def sample(self, clusters: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A new row from every one of some clusters (m,)."""
        means, variances = self.mixture.means[clusters], self.mixture.variances[clusters]
        noise = torch.randn(
            means.shape, dtype=means.dtype, device=means.device, generator=generator
        )
        return self.decode(means + noise * variances.sqrt())

    def draw_clusters(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Independent clusters by their weights."""
        chances = self.mixture.log_weights.exp()
        return torch.multinomial(chances, count, replacement=True, generator=generator)

    def draw_partition(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """The clusters of so many rows as one draw of the partition's prior."""
        scores = torch.zeros(count, dtype=torch.float64, device=self.device)
        law = RandomPartition(scores, self.mixture.log_weights.double())
        return law.sample(generator=generator).argmax(-2)

    @torch.no_grad()
    def lower_bounds(self, rows: Tensor) -> Tensor:
        """(n,): the evidence lower bound of every row, or its log-density among the rows.

        It is that of a Gaussian mixture, in which every row draws its cluster by the weights,
        independently of the others. This also holds for DRPM-VC, although its own prior draws the
        clusters of all rows together, and its :meth:`chances` leave the weights out. A Gaussian
        likelihood leaves out its constant, which depends on its deviation.
        """
        if self.autoencoder is None:
            return self.mixture.log_prob(rows)
        generator = torch.Generator(self.device).manual_seed(0)
        found = []
        for part in rows.split(_ROWS_AT_ONCE):
            posterior = self.autoencoder.posterior(self.autoencoder.encoder(part))
            fit = self.autoencoder.log_likelihood(part, posterior.sample((), generator))
            scores = log_densities(posterior.mean, self.mixture) + self.mixture.log_weights
            log_chances = scores.log_softmax(-1)
            price = divergences(posterior, self.mixture) + log_chances - self.mixture.log_weights
            found.append(fit - (log_chances.exp() * price).sum(-1))
        return torch.cat(found)

    def to(self, device: torch.device | str) -> "FittedClustering":
        """The same on another device."""
        return replace(
            self,
            mixture=Mixture(*(x.to(device) for x in self.mixture)),
            # Copies: a module moves itself, and this clustering stays where it is.
            autoencoder=copy.deepcopy(self.autoencoder).to(device) if self.autoencoder else None,
            head=copy.deepcopy(self.head).to(device) if self.head else None,
        )

    def save(self, folder: str | Path) -> None:
        """Write it to a folder, as numbers and text."""
        folder = Path(folder)
        if folder.is_dir():
            # An estimator that lies there goes with another clustering.
            (folder / ESTIMATOR_FILE).unlink(missing_ok=True)
        tensors = {f"mixture.{name}": x for name, x in self.mixture._asdict().items()}
        for name, module in (("autoencoder", self.autoencoder), ("head", self.head)):
            if module is not None:
                tensors |= {f"{name}.{key}": x for key, x in module.state_dict().items()}
        for name, part in (("shift", self.shift), ("scale", self.scale)):
            if part is not None:
                tensors[name] = part
        description = {
            "kind": "clustering",
            "config": configs.dumps(self.config),
            "shape": list(self.shape),
            "likelihood": "" if self.autoencoder is None else self.autoencoder.likelihood,
        }
        save_model(folder, {name: x.contiguous() for name, x in tensors.items()}, description)


def load_clustering(folder: str | Path, device: torch.device | str = "cpu") -> FittedClustering:
    """Read a clustering of any method, as ``drpm cluster`` leaves one; nothing is unpickled.

    Arguments:
        folder: The folder of the model, such as ``out/cluster/model``.
        device: Where it goes.
    """
    tensors, description = load_model(Path(folder))
    if description.get("kind") != "clustering":
        raise RunError(f"The folder {folder} holds another kind of model than a clustering.")
    config = configs.loads(ClusteringConfig, description["config"])
    shape = torch.Size(description["shape"])
    clusters, columns = config.clusters, shape.numel()
    autoencoder, head = None, None
    modules: dict[str, nn.Module] = {}
    if config.method != "gmm":
        with unseeded():
            autoencoder = Autoencoder(columns, config.network, description["likelihood"])
        modules["autoencoder."] = autoencoder
    if config.method == "contrastive-head":
        with unseeded():
            modules["head."] = head = projector(config.network.encoder[-1], clusters)
    dims = columns if autoencoder is None else config.network.latent
    sides = {"log_weights": (clusters,), "means": (clusters, dims), "variances": (clusters, dims)}
    others = {f"mixture.{name}": side for name, side in sides.items()}
    load_modules(folder, tensors, modules, others | scale_shapes(tensors, columns))
    mixture = Mixture(*(tensors[name] for name in others))
    shift, scale = tensors.get("shift"), tensors.get("scale")
    return FittedClustering(config, shape, mixture, autoencoder, head, shift, scale).to(device)
