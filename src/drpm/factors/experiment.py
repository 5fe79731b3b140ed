"""Shared factors as an experiment: training, evaluation and figures."""

import copy
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.data.mpi3d import FACTOR_NAMES
from drpm.experiments import Evaluation, Experiment
from drpm.factors.config import WORLDS, FactorsConfig, FactorsJob
from drpm.factors.models import FactorVAE, SharedFactors, factor_objective
from drpm.factors.pairs import OwnPairs, Pairs, PairSampler, arm_world, load_pairs, mpi3d_world
from drpm.nn.encoders import standard_divergence
from drpm.report.plots import FigureSpec, image_bytes, pack_figures
from drpm.training.config import check_setting
from drpm.training.devices import seeded
from drpm.training.errors import ConfigError
from drpm.training.loop import ProgressFactory, fit_model
from drpm.training.runs import RunFolder

NAMES: Final = {
    "shared_accuracy": "Shared",
    "independent_accuracy": "Independent",
    "count_error": "Count error",
    "mean_count": "Count",
    "pair_evidence": "Evidence",
    "shared_from_independent": "Shared from independent",
    "independent_from_shared": "Independent from shared",
    "used_dimensions": "Dimensions in use",
    "shared_used": "Shared in use",
    "reconstruction": "Reconstruction error",
    "latent_divergence": "KL of codes",
    "partition_divergence": "KL of the partition",
}
"""Display names of metrics; the terminal shows the first five."""

_SHOWN: Final = 8  # pairs in a figure
_TEST_SEED: Final = 1_000_000  # the same test pairs for every method and seed


def fit_factors(
    pairs: Pairs,
    config: FactorsConfig,
    folder: Path | str,
    *,
    device: torch.device | str = "cpu",
    progress: ProgressFactory = lambda stage: None,
) -> FactorVAE:
    """Train a model of pairs, or resume its training.

    Args:
        pairs: The training pairs, sampled at every step.
        config: The settings; ``config.training.seed`` determines all random numbers.
        folder: Folder for checkpoints and metrics; it must not belong to other pairs or settings.
        device: Where to train.
        progress: Maps the name of a stage to its progress bar.
    """
    check_pairs(pairs, config)
    with seeded(config.training.seed):
        model = FactorVAE(pairs.image_shape, config).to(device)
    fit_model(
        model,
        factor_objective,
        config,
        folder,
        # Only the length of this column is used, since pairs are sampled.
        {"pair": torch.zeros(config.steps_per_epoch * config.training.batch_size)},
        fingerprint=pairs.fingerprint,
        device=device,
        augment=pairs.to(device) if isinstance(pairs, OwnPairs) else pairs,
        progress=progress,
    )
    return model


def check_pairs(pairs: Pairs, config: FactorsConfig) -> None:
    """Raise if a model cannot be trained on the pairs."""
    if isinstance(pairs, OwnPairs) and config.method == "label":
        raise ConfigError("method must not be 'label' for pairs without labels.")
    with torch.device("meta"):
        FactorVAE(pairs.image_shape, config)


class Factors(Experiment[FactorsJob, Pairs, FactorVAE]):
    """DRPM-VAE and its baselines on pairs of images."""

    scores: ClassVar[Mapping[str, str]] = dict([*NAMES.items()][:5])
    outputs: ClassVar[tuple[str, ...]] = ("training", "pairs.csv")

    def resolve(self, job: FactorsJob, device: torch.device) -> FactorsJob:
        if job.data not in WORLDS:
            return job
        is_fast = device.type == "cuda"
        defaults: dict[str, Any] = {
            "shared": "3",
            "angles": 40 if is_fast or job.data == "mpi3d" else 2,
            "image_size": 64 if is_fast or job.data == "mpi3d" else 32,
            "test_pairs": 10_000 if is_fast else 2_000,
        }
        missing = {name: x for name, x in defaults.items() if getattr(job, name) is None}
        return replace(job, **missing, which=None if job.which == "random" else job.which)

    def load(self, job: FactorsJob, device: torch.device) -> Pairs:
        if job.data not in WORLDS:
            pairs = load_pairs(job.data, job.image_size)
            for name in ("shared", "which", "angles", "test_pairs"):
                check_setting(job, name, "omitted for your own pairs", lambda value: value is None)
            return pairs
        given: Any = job
        if job.data == "arm":
            world = arm_world(device, given.angles, given.image_size)
        else:
            world = mpi3d_world(device, given.angles)
        shared = given.shared if given.shared == "mixed" else int(given.shared)
        return PairSampler(world, shared, job.which or "random")

    def fingerprint(self, job: FactorsJob, data: Pairs) -> str:
        return data.fingerprint() if isinstance(data, OwnPairs) else ""

    def check(self, job: FactorsJob, data: Pairs) -> list[str]:
        check_pairs(data, job.factors)
        return []

    def fit(self, job: FactorsJob, data: Pairs, folder: Path, **options: Any) -> FactorVAE:
        return fit_factors(data, job.factors, folder, **options)

    def evaluate(
        self, job: FactorsJob, model: FactorVAE, data: Pairs, run: RunFolder, progress: object
    ) -> Evaluation:
        model.save(run.model_dir)
        run.copy_stage_metrics([run.path / "training"])
        if isinstance(data, OwnPairs):
            batch = {"first": data.first, "second": data.second}
            described: dict[str, Any] = {"name": job.data, "pairs": len(data.names)}
        else:
            images = data.world.images
            generator = torch.Generator(images.device).manual_seed(_TEST_SEED)
            batch = data({"pair": torch.zeros(job.test_pairs or 0)}, generator)
            described = {"name": job.data, "images": len(images)}
            described |= {"shared": job.shared, "which": data.which}
        views, label = (batch["first"], batch["second"]), batch.get("label")
        found = model.share(*views, label=label)
        metrics: dict[str, Any] = {"mean_count": found.number.mean().item()}
        tables = {}
        if isinstance(data, OwnPairs):
            columns = [f"dimension {i}" for i in range(found.mask.shape[-1])]
            table = pd.DataFrame(found.mask.int().tolist(), list(data.names), columns)
            table.insert(0, "shared", table.sum(axis=1))
            run.write_atomic("pairs.csv", table.to_csv(index_label="pair", lineterminator="\n"))
        else:
            # The model's averages, which may differ from the mean of both codes.
            known = batch["factors"], batch["is_shared"]
            metrics = evaluate_pairs(found.averaged, found.mask, *known)._asdict()
            scores = metrics.pop("by_factor")
            for name, values in scores.items():
                metrics |= {f"{name}_{x}": y for x, y in zip(FACTOR_NAMES, values, strict=True)}
            tables["Factors"] = {
                factor: {NAMES[name]: f"{name}_{factor}" for name in scores}
                for factor in FACTOR_NAMES
            }
        metrics |= measure_usage(found)
        metrics |= estimate_evidence(model, *views, label=label)._asdict()
        facts = {"data": described, "names": NAMES, "tables": tables}
        return Evaluation(metrics, figure_data(model, batch, found), facts)

    def title(self, job: FactorsJob, data: Pairs) -> str:
        return f"{job.data}: shared factors, {job.factors.method}"


class PairScores(NamedTuple):
    """Scores of a model on test pairs.

    Accuracies are adjusted, balanced (1 is perfect, 0 is chance) and averaged over the factors that
    have training and test pairs; None if there are none.
    """

    shared_accuracy: float | None  # of shared factors, predicted from the shared dimensions
    independent_accuracy: float | None  # of the first image's other factors, from the others
    count_error: float  # squared error of the number of shared dimensions, for that of factors
    mean_count: float  # the mean number of shared dimensions
    shared_from_independent: float | None  # of shared factors, from the independent dimensions
    independent_from_shared: float | None  # of the other factors, from the shared dimensions
    by_factor: dict[str, list[float | None]]  # the four accuracies of every factor


class Evidence(NamedTuple):
    """Means over pairs, in nats.

    Args:
        pair_evidence: Lower bound on the log-probability of both images: the sum over both views,
            in which a shared dimension counts once. Dimensions chosen by a fixed rule are given.
        reconstruction: Negative log-likelihood of an image given its code, averaged over views.
        latent_divergence: KL divergence of the codes from their prior, averaged over views.
        partition_divergence: KL divergence of the partition from its prior; 0 for a fixed rule.
    """

    pair_evidence: float
    reconstruction: float
    latent_divergence: float
    partition_divergence: float


def evaluate_pairs(codes: Any, mask: Any, factors: Any, is_shared: Any) -> PairScores:
    """Evaluate the shared dimensions of pairs against the true factors.

    Linear classifiers predict each factor from the shared part (the mean of both codes, with zeros
    in the independent dimensions) and from the independent part (the first code, with zeros in the
    shared dimensions), separately for pairs that share the factor and for others. They are trained
    on the first two thirds of the pairs and tested on the others.

    Args:
        codes: Posterior means of both images of each pair, (P, 2, d).
        mask: 1 for shared dimensions, else 0, (P, d).
        factors: The values of the factors of both images, (P, 2, F) integers.
        is_shared: Where these are equal by design, (P, F).
    """
    codes, mask, factors, is_shared = map(_to_array, (codes, mask, factors, is_shared))
    pairs, latent, width = len(codes), codes.shape[-1], is_shared.shape[-1]
    for name, array, shape, expected, holds in (
        ("codes", codes, (pairs, 2, latent), "finite numbers", np.isfinite(codes)),
        ("mask", mask, (pairs, latent), "zeros and ones", np.isin(mask, (0, 1))),
        ("factors", factors, (pairs, 2, width), "integers", factors == factors.round()),
        ("is_shared", is_shared, (pairs, width), "zeros and ones", np.isin(is_shared, (0, 1))),
    ):
        if array.shape != shape or array.size == 0:
            raise ValueError(f"{name} must have shape {shape}, but got {array.shape}.")
        if not holds.all():
            raise ValueError(f"{name} must contain {expected}, but got {array[~holds][0]:g}.")
    shared, values = is_shared.astype(bool), factors[:, 0].astype(np.int64)
    if (shared & (factors[:, 0] != factors[:, 1])).any():
        raise ValueError(
            "factors must be equal in both images where is_shared is true, but differ."
        )
    shared_part, independent_part = codes.mean(1) * mask, codes[:, 0] * (1 - mask)
    by_factor = {
        "shared_accuracy": _accuracies(shared_part, values, shared),
        "independent_accuracy": _accuracies(independent_part, values, ~shared),
        "shared_from_independent": _accuracies(independent_part, values, shared),
        "independent_from_shared": _accuracies(shared_part, values, ~shared),
    }
    known = {name: [x for x in found if x is not None] for name, found in by_factor.items()}
    means = {name: float(np.mean(found)) if found else None for name, found in known.items()}
    count = mask.sum(1)
    error, mean = (float(x.mean()) for x in (np.square(count - shared.sum(1)), count))
    return PairScores(**means, count_error=error, mean_count=mean, by_factor=by_factor)


def _accuracies(
    inputs: NDArray[Any], factors: NDArray[Any], counts: NDArray[np.bool_]
) -> list[float | None]:
    """Balanced accuracy of each factor on the selected pairs (P, F)."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import balanced_accuracy_score

    training = np.arange(len(inputs)) < 2 * len(inputs) // 3
    scores: list[float | None] = []
    for values, counted in zip(factors.T, counts.T, strict=True):
        fitted, tested = counted & training, counted & ~training
        if min(len(np.unique(values[fitted])), len(np.unique(values[tested]))) < 2:
            scores.append(None)
            continue
        # Not standardized, since that would scale up unused dimensions.
        classifier = LogisticRegression(max_iter=1000)
        predicted = classifier.fit(inputs[fitted], values[fitted]).predict(inputs[tested])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "y_pred contains classes not in y_true", UserWarning)
            score = balanced_accuracy_score(values[tested], predicted, adjusted=True)
        scores.append(float(score))
    return scores


def _to_array(values: Any) -> NDArray[np.float64]:
    if isinstance(values, Tensor):
        values = values.detach().cpu().double()
    return np.atleast_1d(np.asarray(values, np.float64))


@torch.no_grad()
def estimate_evidence(
    model: FactorVAE, first: Tensor, second: Tensor, *, label: Tensor | None = None, seed: int = 0
) -> Evidence:
    """A lower bound on the log-probability of pairs, computed without labels.

    All weights are 1 and partition probabilities are exact, whatever the training settings, to
    compare models of one method with different weights. Do not compare methods if one of them has
    a fixed rule, whose partition costs nothing.

    Args:
        model: The model.
        first: (P, C, H, W), values in [0, 1]; held-out pairs.
        second: The same.
        label: (P,), a factor that differs, for the method ``label``.
        seed: Random seed of the partition and codes sampled for each pair.
    """
    model = copy.deepcopy(model)
    model.aggregation.config = replace(model.config, gamma=1.0, delta=1.0, objective="exact")
    temperature = model.last_temperature
    generator = torch.Generator(temperature.device).manual_seed(seed)
    found = []
    for batch in model.batches(first, second, label):
        # The bound is an expectation over partitions.
        _, aggregated, shared = model.compare(batch, temperature, generator)
        errors = model.errors(batch, aggregated.sample((), generator)).mean(0)
        latent = standard_divergence(aggregated)
        once = (shared.mask * latent).sum(-1).mean(0)
        partition = torch.stack([torch.zeros_like(once), *shared.terms.values()]).sum(0)
        parts = [errors, latent.sum(-1).mean(0), partition, once]
        found.append(torch.stack(parts).double())
    reconstruction, latent, partition, once = torch.cat(found, 1).mean(1).tolist()
    evidence = -(2 * (reconstruction + latent) - once + partition)
    return Evidence(evidence, reconstruction, latent, partition)


def measure_usage(found: SharedFactors) -> dict[str, float]:
    """The number of active dimensions (variance of codes above 0.1), and the mean number shared."""
    in_use = found.codes.flatten(0, 1).var(0) > 0.1
    return {
        "used_dimensions": float(in_use.sum()),
        "shared_used": (found.mask * in_use).sum(-1).mean().item(),
    }


def figure_data(model: FactorVAE, batch: Mapping[str, Tensor], found: SharedFactors) -> bytes:
    """All figures of test pairs and their shared dimensions, as an npz archive."""
    mask, averaged = found.mask[:_SHOWN], found.averaged[:_SHOWN]
    shown = {view: batch[view][:_SHOWN].to(mask) for view in ("first", "second")}
    made = {
        "reconstructed": model.decode(averaged),
        "swapped": model.swap(found.codes[:_SHOWN], mask),
    }
    if len(averaged) > 1:
        shared = mask[:, None, :]
        borrowed = shared * averaged.roll(-1, 0)[:, :1] + (1 - shared) * averaged
        made["next pair's"] = model.decode(borrowed)
    for name, images in made.items():
        shown |= {f"{view}, {name}": images[:, i] for i, view in enumerate(("first", "second"))}
    title = "Pairs, reconstructed and with other shared dimensions"
    about = (
        "Pairs of images, one per column; their reconstructions with shared dimensions averaged; "
        "reconstructions with the shared dimensions of both images swapped, which change nothing "
        "if the model is right or these dimensions are unused; and with the shared dimensions of "
        "the next column's first image, which change both images in the same way unless unused."
    )
    pixels = image_bytes(torch.stack([*shown.values()]))
    specs = [FigureSpec("grid", "pairs", pixels, list(shown), (), title, about)]
    values = torch.linspace(-2, 2, 9)  # in standard deviations of the prior
    images = model.traverse(batch["first"][0], values)
    rows, columns = [f"dimension {i}" for i in range(len(images))], [f"{x:.1f}" for x in values]
    title = "An image with one latent dimension set to other values"
    specs.append(FigureSpec("grid", "traversals", image_bytes(images), rows, columns, title))
    number, rates = found.number.cpu(), found.mask.double().mean(0).cpu()
    counts = number.long().bincount(minlength=len(rates) + 1).double() / len(number)
    for name, bars, what in (
        ("rates", rates, "each dimension"),
        ("count", counts, "this many dimensions"),
    ):
        groups, title = map(str, range(len(bars))), f"Fraction of pairs that share {what}"
        specs.append(FigureSpec("bars", name, bars[:, None].numpy(), [*groups], (), title))
    return pack_figures(specs)
