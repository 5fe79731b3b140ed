"""Shared factors as an experiment: training, evaluation and figures of a model."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

import pandas as pd
import torch
from torch import Tensor

from drpm.data.mpi3d import FACTOR_NAMES
from drpm.experiments.base import Evaluation, Experiment
from drpm.factors.config import MIXED, WORLDS, FactorsConfig, FactorsJob
from drpm.factors.evaluation import estimate_evidence, evaluate_pairs
from drpm.factors.models import FactorVAE, SharedFactors, factor_objective
from drpm.factors.pairs import OwnPairs, Pairs, PairSampler, arm_world, load_pairs, mpi3d_world
from drpm.report.plots import FigureSpec, image_bytes, pack_figures
from drpm.training.config import check_setting
from drpm.training.devices import seeded
from drpm.training.errors import ConfigError
from drpm.training.loop import ProgressFactory, fit_model
from drpm.training.runs import RunFolder

STAGE: Final = "training"
PAIRS: Final = "pairs.csv"

SCORES: Final = {
    "shared_accuracy": "Shared",
    "independent_accuracy": "Independent",
    "count_error": "Count error",
    "mean_count": "Count",
    "pair_evidence": "Evidence",
}
NAMES: Final = {
    **SCORES,
    "shared_from_independent": "Shared from independent",
    "independent_from_shared": "Independent from shared",
    "used_dimensions": "Dimensions in use",
    "shared_used": "Shared in use",
    "reconstruction": "Reconstruction error",
    "latent_divergence": "KL of codes",
    "partition_divergence": "KL of the partition",
}
"""Display names of metrics."""

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
        # Pairs are drawn; of this column only the length is used.
        {"pair": torch.zeros(config.steps_per_epoch * config.training.batch_size)},
        fingerprint=pairs.fingerprint,
        device=device,
        augment=pairs.to(device) if isinstance(pairs, OwnPairs) else pairs,
        progress=progress,
    )
    return model


def check_pairs(pairs: Pairs, config: FactorsConfig) -> None:
    """Refuse pairs that a model cannot be trained on."""
    if isinstance(pairs, OwnPairs) and config.method == "label":
        raise ConfigError("method must not be 'label' for pairs without labels.")
    with torch.device("meta"):
        FactorVAE(pairs.image_shape, config)


class Factors(Experiment[FactorsJob, Pairs, FactorVAE]):
    """DRPM-VAE and its baselines on pairs of images."""

    scores: ClassVar[Mapping[str, str]] = SCORES
    outputs: ClassVar[tuple[str, ...]] = (STAGE, PAIRS)

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
        shared = given.shared if given.shared == MIXED else int(given.shared)
        return PairSampler(world, shared, job.which or "random")

    def fingerprint(self, job: FactorsJob, data: Pairs) -> str:
        return data.fingerprint() if isinstance(data, OwnPairs) else ""

    def check(self, job: FactorsJob, data: Pairs) -> list[str]:
        check_pairs(data, job.factors)
        return []

    def fit(self, job: FactorsJob, data: Pairs, folder: Path, **options: Any) -> FactorVAE:
        return fit_factors(data, job.factors, folder, **options)

    def evaluate(
        self,
        job: FactorsJob,
        model: FactorVAE,
        data: Pairs,
        run: RunFolder,
        progress: ProgressFactory,
    ) -> Evaluation:
        model.save(run.model_dir)
        run.take_metrics([run.path / STAGE])
        described: dict[str, Any] = {"name": job.data}
        if isinstance(data, OwnPairs):
            batch = {"first": data.first, "second": data.second}
            described["pairs"] = len(data.names)
        else:
            generator = torch.Generator(data.world.images.device).manual_seed(_TEST_SEED)
            batch = data({"pair": torch.zeros(job.test_pairs or 0)}, generator)
            count = len(data.world.images)
            described |= {"images": count, "shared": job.shared, "which": data.which}
        views, label = (batch["first"], batch["second"]), batch.get("label")
        found = model.share(*views, label=label)
        metrics: dict[str, Any] = {"mean_count": found.number.mean().item()}
        tables = {}
        if isinstance(data, OwnPairs):
            columns = [f"dimension {i}" for i in range(found.mask.shape[-1])]
            table = pd.DataFrame(found.mask.int().tolist(), list(data.names), columns)
            table.insert(0, "shared", table.sum(axis=1))
            run.write_atomic(PAIRS, table.to_csv(index_label="pair", lineterminator="\n"))
        else:
            # Averaged as the model does it, which need not be the plain mean of both codes.
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
        figures = figure_data(model, batch, found)
        return Evaluation(metrics, figures, facts)

    def title(self, job: FactorsJob, data: Pairs) -> str:
        return f"{job.data}: shared factors, {job.factors.method}"


def measure_usage(found: SharedFactors) -> dict[str, float]:
    """The number of dimensions in use, and how many of these a pair shares on average.

    Sharing an unused dimension costs nothing, so the number of shared dimensions can mislead. The
    codes of a dimension in use have a variance above 0.1; under the prior it is 1.
    """
    in_use = found.codes.flatten(0, 1).var(0) > 0.1
    return {
        "used_dimensions": float(in_use.sum()),
        "shared_used": (found.mask * in_use).sum(-1).mean().item(),
    }


def figure_data(model: FactorVAE, batch: Mapping[str, Tensor], found: SharedFactors) -> bytes:
    """All figures of test pairs and their shared dimensions, as an npz archive."""
    values = torch.linspace(-2, 2, 9)  # in standard deviations of the prior
    images = model.traverse(batch["first"][0], values)
    rows, columns = [f"dimension {i}" for i in range(len(images))], [f"{x:.1f}" for x in values]
    title = "An image with one latent dimension set to other values"
    grid = FigureSpec("grid", "traversals", image_bytes(images), rows, columns, title)
    specs = [_pairs(model, batch, found), grid]
    number, rates = found.number.cpu(), found.mask.double().mean(0).cpu()
    counts = number.long().bincount(minlength=len(rates) + 1).double() / len(number)
    for name, bars, what in (
        ("rates", rates, "each dimension"),
        ("count", counts, "this many dimensions"),
    ):
        groups, title = map(str, range(len(bars))), f"Fraction of pairs that share {what}"
        specs.append(FigureSpec("bars", name, bars[:, None].numpy(), [*groups], (), title))
    return pack_figures(specs)


def _pairs(model: FactorVAE, batch: Mapping[str, Tensor], found: SharedFactors) -> FigureSpec:
    """Pairs, their reconstructions, and the same with other shared dimensions."""
    mask, averaged = found.mask[:_SHOWN], found.averaged[:_SHOWN]
    rows = {view: batch[view][:_SHOWN].to(mask) for view in ("first", "second")}
    made = {
        "reconstructed": model.decode(averaged),
        "swapped": model.swap(found.codes[:_SHOWN], mask),
    }
    if len(averaged) > 1:
        shared = mask[:, None, :]
        lent = shared * averaged.roll(-1, 0)[:, :1] + (1 - shared) * averaged
        made["next pair's"] = model.decode(lent)
    for name, images in made.items():
        rows |= {f"{view}, {name}": images[:, i] for i, view in enumerate(("first", "second"))}
    title = "Pairs, reconstructed and with other shared dimensions"
    about = (
        "Pairs of images, one per column; their reconstructions with shared dimensions averaged; "
        "reconstructions with the shared dimensions of both images swapped, which change nothing "
        "if the model is right or these dimensions are unused; and with the shared dimensions of "
        "the next column's first image, which change both images in the same way unless unused."
    )
    values = image_bytes(torch.stack([*rows.values()]))
    return FigureSpec("grid", "pairs", values, list(rows), (), title, about)
