"""What clusterings have in common as scikit-learn estimators: rows in, clusters out."""

import copy
import json
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
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
    ClusteringConfig,
    Method,
    MixtureConfig,
    NetworkConfig,
    PretrainingConfig,
)
from drpm.clustering.fitted import ESTIMATOR_FILE, FittedClustering, load_clustering
from drpm.clustering.mixtures import Mixture
from drpm.clustering.models import choose_likelihood, require_chances
from drpm.clustering.pipeline import fit_clusterings
from drpm.distributions.validation import (
    require_choice,
    require_count,
    require_number,
)
from drpm.training.checkpoint import MODEL_FILE, write_atomic
from drpm.training.config import TrainingConfig
from drpm.training.devices import connect
from drpm.training.errors import SIGNAL_EXIT, Interrupted, RunError
from drpm.training.loop import Progress
from drpm.training.turns import TURN

Array = NDArray[Any]

_LIKELIHOODS = ("auto", "bernoulli", "gaussian")

# The deviation of a Gaussian likelihood, beside that of standardised data, which is one. Of tables
# that were held out, the bound is highest around this; a deviation of one would leave the codes of
# a few columns next to nothing to tell. Images have so many columns that more will do.
_TABLE_DEVIATION, _IMAGE_DEVIATION = 0.25, 0.5

# The size of steps, where it is left open. On images the larger ones end at a higher bound, and at
# clusters that tell a warped copy by its original more often.
_IMAGE_RATE, _TABLE_RATE = 3e-3, 1e-3


class ClusteringEstimator(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]  # scikit-learn has no annotations
    TransformerMixin,  # type: ignore[misc]
    ClusterMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """What the three estimators share: all but the settings of their model.

    Inside, a row is flat and float32 for training, float64 for all that comes after, so that what
    is said of a row does not depend on the rows beside it. That happens on the CPU, wherever the
    model was trained: so it is the same on every machine.
    """

    _method: ClassVar[Method]

    model_: FittedClustering
    labels_: Array
    cluster_centers_: Array
    n_iter_: int
    n_features_in_: int
    _shape: tuple[int, ...]
    _likelihood: str
    _shift: Array
    _scale: Array

    def __init__(
        self,
        n_clusters: int,
        *,
        latent_dim: int,
        hidden: tuple[int, ...],
        max_iter: int,
        batch_size: int,
        learning_rate: float | None,
        likelihood: str,
        warm_start: bool,
        device: str,
        verbose: bool,
        random_state: Any,
    ) -> None:
        self.n_clusters = n_clusters
        self.latent_dim = latent_dim
        self.hidden = hidden
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.likelihood = likelihood
        self.warm_start = warm_start
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # Fitting.

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the clusters of a table or of images.

        Fits in several threads take turns; those in several processes go on side by side.

        Arguments:
            X: Rows (n, d), grey images (n, height, width) or images (n, channels, height, width).
            y: Not used.
        """
        self._check_parameters()
        warm = bool(self.warm_start) and hasattr(self, "model_")
        data, shape = self._validate(X, reset=not warm)
        if self.n_clusters > len(data):
            raise ValueError(
                f"n_clusters must be at most n_samples={len(data)}, but got {self.n_clusters}."
            )
        if warm:
            self._check_warm_start()
            self._check_range(data)
        else:
            self._set_scale(data, shape)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        found = self._train(self._to_rows(data).float(), shape, seed, warm)
        self._set_model(found)
        labels = self._chances(data).argmax(1)
        # Clusters that no row is in come last, so that labels leave no number out.
        order = np.argsort(np.bincount(labels, minlength=self.n_clusters) == 0, kind="stable")
        mixture = Mixture(*(x[torch.from_numpy(order)] for x in found.mixture))
        self._set_model(replace(found, mixture=mixture))
        self.labels_ = np.argsort(order)[labels]
        self.n_iter_ = self.max_iter
        return self

    def fit_predict(self, X: Any, y: Any = None, **kwargs: Any) -> Array:
        """The clusters of the rows that they are found among, (n,)."""
        return self.fit(X).labels_

    def _train(
        self, rows: Tensor, shape: tuple[int, ...], seed: int, warm: bool
    ) -> FittedClustering:
        config = self._config(len(rows), warm)
        device = connect(config.training).device
        # Images of one channel have that channel for the networks' augmentations.
        full = (1, *shape) if len(shape) == 2 else shape
        with (
            TURN,
            _told_as_usual(),
            TemporaryDirectory(prefix="drpm-") as folder,
            # Training seeds torch's own generator, which is the caller's.
            torch.random.fork_rng([device] if device.type == "cuda" else []),
        ):
            (found,) = fit_clusterings(
                rows.to(device),
                torch.Size(full),
                config,
                [Path(folder)],
                seeds=[seed],
                progress=self._progress,
                starts=[_convert(self.model_, torch.float32).to(device)] if warm else None,
            )
        return found.to("cpu")

    def _progress(self, stage: str) -> Progress | None:
        if not self.verbose:
            return None
        from drpm.training.progress import make_progress

        return make_progress()

    def _config(self, rows: int, warm: bool) -> ClusteringConfig:
        """The settings of a fit of so many rows."""
        are_images = len(self._shape) > 1
        rate = self.learning_rate
        if rate is None:
            rate = _IMAGE_RATE if are_images else _TABLE_RATE
        training = TrainingConfig(
            epochs=self.max_iter,
            batch_size=self.batch_size,
            learning_rate=float(rate),
            drop_last=False,
            device=self.device,
            # Nobody goes on from the folder of a fit.
            checkpoint_every=self.max_iter,
        )
        steps = self.max_iter * math.ceil(rows / self.batch_size)
        deviation = _IMAGE_DEVIATION if are_images else _TABLE_DEVIATION
        if warm:
            deviation = self.model_.config.network.deviation
        return ClusteringConfig(
            method=self._method,
            clusters=int(self.n_clusters),
            # Decided already: standardised data might look as if they lay in [0, 1] by nature.
            likelihood=self._likelihood,  # type: ignore[arg-type]
            # What goes on goes on from the end of the schedules.
            annealing_steps=1 if warm else max(1, steps // 2),
            network=NetworkConfig(
                self.latent_dim,
                tuple(self.hidden),
                tuple(self.hidden)[::-1],
                deviation,
            ),
            pretraining=PretrainingConfig(training=self._pretraining(training, rows)),
            mixture=MixtureConfig(init="auto", code_variance=True),
            training=training,
        )

    def _pretraining(self, training: TrainingConfig, rows: int) -> TrainingConfig:
        """How the networks are pretrained, given how the model is trained."""
        return training

    def _check_parameters(self) -> None:
        for name in ("n_clusters", "latent_dim", "max_iter", "batch_size"):
            require_count(name, getattr(self, name))
        try:
            widths = [require_count("hidden", width) for width in self.hidden]
        except (TypeError, ValueError):
            widths = []
        if not widths:
            raise ValueError(
                "hidden must be one or more widths of at least 1 in a tuple, "
                f"but got {self.hidden!r}."
            )
        if self.learning_rate is not None:
            require_number("learning_rate", self.learning_rate, positive=True)
        require_choice("likelihood", self.likelihood, _LIKELIHOODS)

    def _check_warm_start(self) -> None:
        """What has been learned fits no other networks and no other clusters."""
        network = self.model_.config.network
        known = {
            "n_clusters": self.model_.clusters,
            "latent_dim": network.latent,
            "hidden": network.encoder,
        }
        for name, value in known.items():
            asked = getattr(self, name)
            if (tuple(asked) if name == "hidden" else asked) != value:
                raise ValueError(f"{name} must stay {value!r} in a warm start, but got {asked!r}.")
        if network.decoder != network.encoder[::-1]:
            raise ValueError(
                "warm_start must be False where the decoder has other widths than hidden in "
                f"reverse, but got a model with {network.decoder!r}."
            )

    # From what comes in to rows, and back.

    def _validate(self, X: Any, *, reset: bool) -> tuple[Array, tuple[int, ...]]:
        """Flat rows, and the shape of what each of them was."""
        shape: tuple[int, ...] | None = None
        if isinstance(X, list | tuple):
            X = np.asarray(X)
        if getattr(X, "ndim", 2) > 2:
            X = np.asarray(X)
            shape = X.shape[1:]
            if len(shape) > 3 or 0 in X.shape:
                raise ValueError(
                    "X must have the shape (n, d), (n, height, width) or "
                    f"(n, channels, height, width), none of them 0, but got {X.shape}."
                )
            # Grey images may come without their one channel.
            if not reset and self._shape not in (shape, (1, *shape)):
                raise ValueError(
                    f"X must hold what the clusters were found among, of shape {self._shape}, "
                    f"but got {shape}."
                )
            X = X.reshape(len(X), -1)
        data: Array = validate_data(self, X, reset=reset, dtype=[np.float64, np.float32])
        # Rows of a model of images are images laid flat.
        if not reset:
            return data, self._shape
        return data, data.shape[1:] if shape is None else shape

    def _set_scale(self, data: Array, shape: tuple[int, ...]) -> None:
        """What is taken off the data, and what they are divided by, before a network sees them."""
        rows = torch.tensor(data, dtype=torch.float64)
        if self.likelihood == "bernoulli":
            require_chances("X", rows)
        likelihood = choose_likelihood(rows, self.likelihood)
        shift, scale = torch.zeros(rows.shape[1]).double(), torch.ones(rows.shape[1]).double()
        if likelihood == "gaussian":
            # Columns of a table have units of their own; pixels share one.
            some = rows if len(shape) == 1 else rows.reshape(-1, 1)
            shift, spread = some.mean(0).expand_as(shift), some.std(0, correction=0)
            # A constant column differs from its mean by rounding at most.
            noise = 10 * torch.finfo(torch.float32).eps * some.abs().amax(0)
            scale = torch.where(spread > noise, spread, 1.0).expand_as(scale)
        self._likelihood, self._shape = likelihood, tuple(shape)
        self._shift, self._scale = shift.numpy().copy(), scale.numpy().copy()

    def _check_range(self, data: Array) -> None:
        """Refuse what a model of numbers in [0, 1] has no likelihood for."""
        if self._likelihood == "bernoulli":
            require_chances("X", torch.tensor(data))

    def _to_rows(self, data: Array) -> Tensor:
        return torch.from_numpy((data.astype(np.float64) - self._shift) / self._scale)

    def _from_rows(self, rows: Tensor, dtype: Any = np.float64) -> Array:
        data = rows.numpy() * self._scale + self._shift
        return data.reshape(-1, *self._shape).astype(dtype)

    def _set_model(self, found: FittedClustering) -> None:
        shift, scale = (torch.from_numpy(x) for x in (self._shift, self._scale))
        self.model_ = replace(_convert(found, torch.float64), shift=shift, scale=scale)
        self.cluster_centers_ = self._from_rows(self.model_.decode(self.model_.mixture.means))

    @property
    def _n_features_out(self) -> int:
        return self.model_.config.network.latent

    # What the clusters say of rows.

    def _chances(self, data: Array) -> Array:
        return self.model_.chances(self._to_rows(data), sampled=False).numpy()

    def predict_proba(self, X: Any) -> Array:
        """How likely every cluster is for every row, (n, n_clusters)."""
        check_is_fitted(self)
        data, _ = self._validate(X, reset=False)
        return self._chances(data).astype(data.dtype)

    def predict(self, X: Any) -> Array:
        """The likeliest cluster of every row, (n,)."""
        check_is_fitted(self)
        data, _ = self._validate(X, reset=False)
        labels: Array = self._chances(data).argmax(1)
        return labels

    def transform(self, X: Any) -> Array:
        """The latent code of every row, (n, latent_dim)."""
        check_is_fitted(self)
        data, _ = self._validate(X, reset=False)
        return self.model_.embed(self._to_rows(data)).numpy().astype(data.dtype)

    def inverse_transform(self, X: Any) -> Array:
        """What latent codes (n, latent_dim) stand for, in the shape of the training data."""
        check_is_fitted(self)
        codes = check_array(X, dtype=[np.float64, np.float32], input_name="X")
        if codes.shape[1] != self._n_features_out:
            raise ValueError(
                f"X must have {self._n_features_out} columns, the latent dimensions, "
                f"but got {codes.shape[1]}."
            )
        decoded = self.model_.decode(torch.tensor(codes, dtype=torch.float64))
        return self._from_rows(decoded, codes.dtype)

    def score(self, X: Any, y: Any = None) -> float:
        """The mean evidence lower bound (ELBO) per row, in nats.

        The ELBO is that of a Gaussian mixture prior, in which every row draws its cluster by the
        weights, independently of the others. This also holds for :class:`DRPMClustering`, although
        its own prior draws the clusters of all rows together, and its :meth:`predict_proba` leaves
        the weights out.

        It bounds the mean log-density of the rows from below, in the units of X; with a Bernoulli
        likelihood, their log-probability, and X must lie in [0, 1]. It is estimated from one draw
        of every row's code, the same at every call.
        """
        check_is_fitted(self)
        data, _ = self._validate(X, reset=False)
        self._check_range(data)
        bound = self.model_.lower_bounds(self._to_rows(data)).mean().item()
        if self._likelihood == "gaussian":
            # The model leaves the Gaussian's constant out, and knows nothing of the scale.
            deviation = self.model_.config.network.deviation
            bound -= data.shape[1] * math.log(math.sqrt(2 * math.pi) * deviation)
            bound -= np.log(self._scale).sum()
        return float(bound)

    # What they can make.

    def sample(
        self, n: int = 1, cluster: int | None = None, *, random_state: Any = None
    ) -> tuple[Array, Array]:
        """New rows, each from a cluster drawn by its weight or all from one.

        A row is what its latent code stands for on average, the mean of the likelihood: rows have
        the spread of the codes, but not the noise that the model takes rows to have around that.
        So those of a table spread less than the data, and pixels are fractions, not black or white.

        Arguments:
            n: How many.
            cluster: The cluster to draw from; by default all of them.
            random_state: Settles the draw; by default the estimator's does, and an estimator with
                a number for one draws the same rows at every call.

        Returns:
            The rows, in the shape of the training data, and their clusters (n,).
        """
        generator = self._generator(n, random_state)
        if cluster is None:
            labels = self.model_.draw_clusters(n, generator)
        else:
            known = self.model_.clusters
            asked: Any = cluster
            whole = isinstance(asked, Integral) and not isinstance(asked, bool)
            if not whole or asked not in range(known):
                raise ValueError(
                    f"cluster must be a whole number from 0 to {known - 1} or None, "
                    f"but got {cluster!r}."
                )
            labels = torch.full((n,), int(cluster))
        return self._from_rows(self.model_.sample(labels, generator)), labels.numpy()

    def sample_partition(self, n: int, *, random_state: Any = None) -> tuple[Array, Array]:
        """New rows whose clusters are drawn together, as one partition of n elements.

        Rows are means, as in :meth:`sample`.

        Arguments:
            n: How many.
            random_state: Settles the draw, as in :meth:`sample`.

        Returns:
            The rows, in the shape of the training data, and their clusters (n,).
        """
        generator = self._generator(n, random_state)
        labels = self.model_.draw_partition(n, generator)
        return self._from_rows(self.model_.sample(labels, generator)), labels.numpy()

    def _generator(self, n: int, random_state: Any) -> torch.Generator:
        check_is_fitted(self)
        require_count("n", n)
        source = check_random_state(self.random_state if random_state is None else random_state)
        return torch.Generator().manual_seed(int(source.randint(2**31 - 1)))

    # Keeping it.

    def save(self, folder: str | Path) -> None:
        """Write the fitted estimator to a folder, as numbers and text.

        Arguments:
            folder: It is made where it is missing; an estimator that lies there is replaced.
        """
        check_is_fitted(self)
        folder = Path(folder)
        _convert(self.model_, torch.float32).save(folder)
        description = {
            "estimator": type(self).__name__,
            "parameters": {name: _plain(value) for name, value in self.get_params().items()},
            "shape": self._shape,
            "likelihood": self._likelihood,
            "labels": self.labels_.tolist(),
            "iterations": int(self.n_iter_),
            "names": list(getattr(self, "feature_names_in_", [])),
        }
        write_atomic(folder / ESTIMATOR_FILE, json.dumps(description).encode())

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what :meth:`save` wrote, or ``drpm cluster``; nothing is unpickled.

        Arguments:
            folder: The folder; of a run, that of its model, such as ``out/cluster/model``.
        """
        folder = Path(folder)
        try:
            description = json.loads((folder / ESTIMATOR_FILE).read_bytes())
        except OSError:
            end = "."
            if (folder / MODEL_FILE).exists():
                end = "; drpm.clustering.load_clustering reads the models of methods without one."
            raise RunError(
                f"{folder} holds no estimator: {ESTIMATOR_FILE} is missing{end}"
            ) from None
        except ValueError:
            description = None
        try:
            kind = description["estimator"]
            if kind != cls.__name__:
                raise RunError(f"{folder} must hold a {cls.__name__}, but got a {kind}.")
            model = load_clustering(folder)
            if model.config.method != cls._method:
                raise ValueError
            return cls._build(description, model)
        except (ValueError, KeyError, TypeError):
            raise RunError(
                f"The estimator in {folder} is damaged: {ESTIMATOR_FILE} is garbled."
            ) from None

    @classmethod
    def _build(cls, description: dict[str, Any], model: FittedClustering) -> Self:
        parameters = description["parameters"]
        found = cls(**parameters | {"hidden": tuple(parameters["hidden"])})
        found._shape = tuple(description["shape"])
        found._likelihood = description["likelihood"]
        if model.shift is None or model.scale is None:
            raise ValueError
        found._shift, found._scale = model.shift.numpy(), model.scale.numpy()
        found._set_model(model)
        found.labels_ = np.asarray(description["labels"], dtype=np.int64)
        found.n_iter_ = description["iterations"]
        found.n_features_in_ = len(found._shift)
        if description["names"]:
            found.feature_names_in_ = np.asarray(description["names"], dtype=object)
        return found


def _convert(model: FittedClustering, dtype: torch.dtype) -> FittedClustering:
    """A copy in another precision."""
    autoencoder = copy.deepcopy(model.autoencoder)
    return replace(
        model,
        mixture=Mixture(*(x.to(dtype) for x in model.mixture)),
        autoencoder=None if autoencoder is None else autoencoder.to(dtype),
    )


@contextmanager
def _told_as_usual() -> Iterator[None]:
    """Signals and failures as of any function: there is no folder that a run could go on in."""
    try:
        yield
    except RunError as error:
        # The rest of the sentence is about that folder.
        raise RunError(f"{str(error).partition(';')[0].rstrip('.')}.") from None
    except Interrupted as stopped:
        # For Ctrl-C this raises KeyboardInterrupt.
        signal.raise_signal(stopped.exit_code - SIGNAL_EXIT)
        raise


def _plain(value: Any) -> Any:
    """A parameter as JSON has it; a generator has no such form, and none stands for it."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str) else None
