"""The common part of the scikit-learn estimators."""

import math
import signal
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from drpm.clustering.config import (
    AutoencoderConfig,
    ClusteringConfig,
    Method,
    MixtureConfig,
    PretrainingConfig,
)
from drpm.clustering.fitted import FittedClustering, assign, check_limits, load_clustering
from drpm.clustering.mixtures import Mixture
from drpm.clustering.models import BERNOULLI, standardization
from drpm.clustering.pipeline import best_start, fit_clusterings, list_starts
from drpm.data.types import scaled_rows
from drpm.distributions.validation import require_count
from drpm.training.config import TrainingConfig, require_unit_interval
from drpm.training.devices import TRAINING_LOCK, connect
from drpm.training.errors import SIGNAL_EXIT, Interrupted, RunError
from drpm.training.loop import TrainingProgress

Array = NDArray[Any]


# A dataclass declares the parameters once; scikit-learn reads them from its constructor.
@dataclass(eq=False, repr=False)
class ClusteringEstimator(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]  # scikit-learn has no annotations
    TransformerMixin,  # type: ignore[misc]
    ClusterMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Base class of the three estimators.

    Training uses float32. Predictions use float64 on the CPU, so that they do not depend on the
    machine or on the other rows of a batch.
    """

    _method: ClassVar[Method]

    n_clusters: int = 10
    _: KW_ONLY
    latent_dim: int = 10
    hidden: tuple[int, ...] = (128, 128)
    max_iter: int = 100
    batch_size: int = 128
    learning_rate: float | None = None
    likelihood: str = "auto"
    size_min: int | None = None
    size_max: int | None = None
    n_init: int = 1
    device: str = "auto"
    verbose: bool = False
    random_state: Any = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the clustering.

        Concurrent fits in threads run one after another; use processes to fit in parallel.

        Args:
            X: A table (n, d), gray images (n, height, width) or images (n, channels, height,
                width).
            y: Ignored.

        Returns:
            The fitted estimator.
        """
        self._check_parameters()
        data = self._validate(X, reset=True)
        shape = np.asarray(X).shape[1:]
        if self.n_clusters > len(data):
            raise ValueError(
                f"n_clusters must be at most n_samples={len(data)}, but got {self.n_clusters}."
            )
        check_limits(len(data), self.n_clusters, size_min=self.size_min, size_max=self.size_max)
        likelihood, shift, scale = standardization(torch.tensor(data), shape, self.likelihood)
        rows = scaled_rows("X", data, shape, shift, scale)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        config = self._config(len(rows), shape, likelihood)
        device = connect(config.training).device
        with (
            TRAINING_LOCK,
            TemporaryDirectory(prefix="drpm-") as folder,
            # Restore the default generator, which dropout and compiled steps use.
            torch.random.fork_rng([device] if device.type == "cuda" else []),
        ):
            try:
                inputs = rows.float().to(device)
                models = fit_clusterings(
                    inputs,
                    # Augmentations of gray images need their one channel.
                    torch.Size((1, *shape) if len(shape) == 2 else shape),
                    config,
                    list_starts(Path(folder), seed, self.n_init),
                    progress=lambda stage: TrainingProgress() if self.verbose else None,
                )
                found = best_start(models, inputs).to("cpu").to(torch.float64)
            except Interrupted as stopped:
                # Raises KeyboardInterrupt for Ctrl-C.
                signal.raise_signal(stopped.exit_code - SIGNAL_EXIT)
                raise
        model = replace(found, shape=torch.Size(shape), shift=shift, scale=scale)
        labels = assign(model.predict_log_proba(rows), self.size_min, self.size_max)
        # Move empty clusters to the end, so that labels are consecutive.
        order = (labels.bincount(minlength=self.n_clusters) == 0).int().argsort(stable=True)
        mixture = Mixture(*(x[order] for x in model.mixture))
        self._set_model(replace(model, mixture=mixture), order.argsort()[labels].numpy())
        return self

    def _config(self, rows: int, shape: tuple[int, ...], likelihood: str) -> ClusteringConfig:
        # Images reach a higher ELBO with a larger rate. For held-out, scaled tables a deviation of
        # about 0.25 gives the highest ELBO; images have more columns.
        rate, deviation = (3e-3, 0.5) if len(shape) > 1 else (1e-3, 0.25)
        training = TrainingConfig(
            epochs=self.max_iter,
            batch_size=self.batch_size,
            learning_rate=rate if self.learning_rate is None else self.learning_rate,
            drop_last=False,
            device=self.device,
            checkpoint_every=self.max_iter,  # a fit is not resumed
        )
        batches = math.ceil(rows / training.batch_size)
        epochs = getattr(self, "pretrain_iter", self.max_iter)
        if epochs is None:
            # With fewer than 50 steps, codes hardly separate the rows.
            epochs = max(self.max_iter, math.ceil(50 / batches))
        pretraining = replace(training, epochs=epochs, checkpoint_every=epochs)
        hidden = tuple(self.hidden)
        return ClusteringConfig(
            method=self._method,
            clusters=self.n_clusters,
            likelihood=likelihood,  # type: ignore[arg-type]  # checked there
            annealing_steps=max(1, self.max_iter * batches // 2),
            network=AutoencoderConfig(self.latent_dim, hidden, hidden[::-1], deviation),
            pretraining=PretrainingConfig(training=pretraining),
            mixture=MixtureConfig(init="auto", code_variance=True),
            training=training,
            **self._model_settings(),
        )

    def _model_settings(self) -> dict[str, Any]:
        """Hyperparameters of this estimator's model."""
        return {}

    def _check_parameters(self) -> None:
        """Check parameters whose settings have other names; the settings check the rest."""
        for name in ("n_clusters", "latent_dim", "max_iter", "n_init"):
            require_count(name, getattr(self, name))
        if getattr(self, "pretrain_iter", None) is not None:
            require_count("pretrain_iter", self.pretrain_iter)
        hidden: Any = _to_json(self.hidden)
        if not isinstance(hidden, tuple | list) or not hidden:
            raise ValueError(
                f"hidden must be a tuple of one or more positive integers, but got {hidden!r}."
            )
        for width in hidden:
            require_count("hidden", width)

    def _validate(self, X: Any, *, reset: bool) -> Array:
        """Flatten to rows; fitted estimators of images also accept flat images."""
        X = np.asarray(X) if isinstance(X, list | tuple) else X
        shape = tuple(getattr(X, "shape", ())[1:])
        if len(shape) > 1:
            if len(shape) > 3:
                raise ValueError(
                    "X must have shape (n, d), (n, height, width) or "
                    f"(n, channels, height, width), but got {tuple(X.shape)}."
                )
            # The one channel of gray images is optional.
            if not reset and self.model_.shape not in (shape, (1, *shape)):
                raise ValueError(
                    f"X must have inputs of shape {tuple(self.model_.shape)}, as in fit, "
                    f"but got {shape}."
                )
            X = np.asarray(X).reshape(len(X), math.prod(shape))
        data: Array = validate_data(self, X, reset=reset, dtype=[np.float64, np.float32])
        return data

    @property
    def _n_features_out(self) -> int:
        return self.model_.config.network.latent

    def _set_model(self, model: FittedClustering, labels: Array) -> None:
        self.model_ = model
        self.cluster_centers_ = model.from_rows(model.decode(model.mixture.means)).numpy()
        self.labels_, self.n_iter_ = labels, model.config.training.epochs

    def _rows(self, X: Any) -> tuple[Tensor, Any]:
        """Validated rows, and the type of X."""
        check_is_fitted(self)
        data = self._validate(X, reset=False)
        return self.model_.to_rows(data), data.dtype

    def predict_proba(self, X: Any) -> Array:
        """The posterior probability of every cluster given each row, (n, n_clusters)."""
        rows, dtype = self._rows(X)
        return self.model_.predict_proba(rows).numpy().astype(dtype)

    def predict(self, X: Any) -> Array:
        """The most likely cluster of every row, (n,)."""
        labels: Array = self.predict_proba(X).argmax(1)
        return labels

    def transform(self, X: Any) -> Array:
        """The latent code of every row, (n, latent_dim)."""
        rows, dtype = self._rows(X)
        return self.model_.embed(rows).numpy().astype(dtype)

    def inverse_transform(self, X: Any) -> Array:
        """Decode latent codes (n, latent_dim) to the shape of the training data."""
        check_is_fitted(self)
        codes = check_array(X, dtype=[np.float64, np.float32], input_name="X")
        if codes.shape[1] != self._n_features_out:
            raise ValueError(
                f"X must have {self._n_features_out} columns, the latent dimensions, "
                f"but got {codes.shape[1]}."
            )
        decoded = self.model_.decode(torch.tensor(codes, dtype=torch.float64))
        return self.model_.from_rows(decoded).numpy().astype(codes.dtype)

    def score(self, X: Any, y: Any = None) -> float:
        """The mean evidence lower bound (ELBO) per row, in nats.

        The ELBO is that of a Gaussian mixture prior with independent clusters, also for
        :class:`DRPMClustering`, whose own prior draws the clusters of all rows together.

        It is a lower bound on the mean log-density of X or, with a Bernoulli likelihood, on the
        mean log-probability; X must then lie in [0, 1]. It is estimated from one sample of every
        code, the same at every call.

        Args:
            X: Data of the shape passed to :meth:`fit`.
            y: Ignored.
        """
        rows, _ = self._rows(X)
        if self.model_.likelihood == "bernoulli":
            require_unit_interval("X", rows, BERNOULLI)
        bound = self.model_.lower_bounds(rows).mean().item()
        if self.model_.likelihood == "gaussian":
            # Add the Gaussian's constant and the log-determinant of the scaling.
            deviation = self.model_.config.network.deviation
            bound -= rows.shape[1] * math.log(math.sqrt(2 * math.pi) * deviation)
            bound -= 0.0 if self.model_.scale is None else self.model_.scale.log().sum().item()
        return bound

    def sample(
        self, n: int = 1, cluster: int | None = None, *, random_state: Any = None
    ) -> tuple[Array, Array]:
        """Generate samples.

        A sample is the mean of the likelihood given a random code, without likelihood noise:
        samples of a table vary less than the data, and pixels are not binary.

        Args:
            n: The number of samples.
            cluster: The cluster to sample from; by default, clusters are drawn by their weights.
            random_state: The seed or generator; by default that of the estimator. An integer gives
                the same samples at every call.

        Returns:
            The samples, in the shape of the training data, and their clusters (n,).
        """
        generator = self._generator(n, random_state)
        if cluster is None:
            weights = self.model_.mixture.log_weights.exp()
            labels = torch.multinomial(weights, n, replacement=True, generator=generator)
        elif cluster in range(self.model_.clusters):
            labels = torch.full((n,), int(cluster))
        else:
            raise ValueError(
                f"cluster must be an integer from 0 to {self.model_.clusters - 1} or None, "
                f"but got {cluster!r}."
            )
        rows = self.model_.sample(labels, generator)
        return self.model_.from_rows(rows).numpy(), labels.numpy()

    def sample_partition(self, n: int, *, random_state: Any = None) -> tuple[Array, Array]:
        """Generate samples whose clusters are a random partition of n elements.

        Args:
            n: The number of samples.
            random_state: The seed or generator, as in :meth:`sample`.

        Returns:
            The samples, in the shape of the training data, and their clusters (n,).
        """
        generator = self._generator(n, random_state)
        labels = self.model_.draw_partition(n, generator)
        rows = self.model_.sample(labels, generator)
        return self.model_.from_rows(rows).numpy(), labels.numpy()

    def _generator(self, n: int, random_state: Any) -> torch.Generator:
        check_is_fitted(self)
        require_count("n", n)
        source = check_random_state(self.random_state if random_state is None else random_state)
        return torch.Generator().manual_seed(int(source.randint(2**31 - 1)))

    def save(self, folder: str | Path) -> None:
        """Save the fitted estimator to a folder, as safetensors and JSON.

        Args:
            folder: The folder; created if needed. An existing model is replaced.
        """
        check_is_fitted(self)
        facts = {
            **self.model_.facts,
            "labels": self.labels_.tolist(),
            "names": list(getattr(self, "feature_names_in_", [])),
            "parameters": {name: _to_json(value) for name, value in self.get_params().items()},
        }
        replace(self.model_, facts=facts).to(torch.float32).save(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load an estimator saved by :meth:`save` or ``drpm cluster``, without pickle.

        Args:
            folder: The folder of the model, such as ``out/cluster/model``.
        """
        model = load_clustering(folder)
        if model.config.method != cls._method:
            raise RunError(
                f"{folder} must contain a model of {cls._method}, but got {model.config.method}; "
                "drpm.clustering.load_clustering loads models of all methods."
            )
        network, facts = model.config.network, model.facts
        given: dict[str, Any] = {
            "n_clusters": model.clusters,
            "latent_dim": network.latent,
            "hidden": network.encoder,
        }
        try:
            given |= facts.get("parameters", {})
            found = cls(**given | {"hidden": tuple(given["hidden"])})
            labels = np.array(facts["labels"], dtype=np.int64)
            found._set_model(model.to(torch.float64), labels)
            if names := list(facts["names"]):
                found.feature_names_in_ = np.array(names, dtype=object)
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
            raise RunError(
                f"{folder} must contain the labels, names and parameters of an estimator, but they "
                "are damaged or of an older version; load_clustering loads the model without them."
            ) from None
        found.n_features_in_ = model.shape.numel()
        return found


def _to_json(value: Any) -> Any:
    """Convert NumPy scalars and arrays to numbers and lists, and random generators to None."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return None if isinstance(value, np.random.RandomState | np.random.Generator) else value
