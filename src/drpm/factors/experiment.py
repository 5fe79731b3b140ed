"""Shared factors as an experiment: training, evaluation and figures of a model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.experiments.base import Evaluation, Experiment
from drpm.factors.config import MIXED, WORLDS, FactorsConfig, FactorsJob
from drpm.factors.evaluation import estimate_evidence, evaluate_pairs
from drpm.factors.models import FactorVAE, SharedFactors, factor_objective
from drpm.factors.pairs import OwnPairs, PairSampler, arm_world, load_pairs, mpi3d_world
from drpm.report.plots import MAX_BARS, FigureSpec, pack_figures
from drpm.training import config as configs
from drpm.training.config import check_setting
from drpm.training.devices import Devices, seeded
from drpm.training.errors import ConfigError
from drpm.training.loop import ProgressFactory, train_stage
from drpm.training.program import ExponentialSchedule
from drpm.training.runs import RunFolder, open_stage

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
    "used_dimensions": "Dimensions in use",
    "shared_used": "Shared in use",
    "reconstruction": "Reconstruction error",
    "latent_divergence": "KL of codes",
    "partition_divergence": "KL of the partition",
}
"""Display names of metrics."""

# A dimension is in use if the variance of its codes, which is 1 under the prior, exceeds this.
LEAST_VARIANCE: Final = 0.1

# In the figures.
SHOWN: Final = 8  # pairs
STEPS: Final = 9  # of a traversal
REACH: Final = 2.0  # of a traversal, in standard deviations of the prior
DIMENSIONS: Final = 50

# The same test pairs for every method and seed.
_TEST_SEED: Final = 1_000_000


def fit_factors(
    pairs: PairSampler | OwnPairs,
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
    training, devices = config.training, Devices(device)
    with seeded(training.seed):
        model = FactorVAE(pairs.image_shape, config).to(device)
    run = open_stage(
        folder, STAGE, configs.dumps(config), fingerprint=pairs.fingerprint, devices=devices
    )
    steps = max(1, training.epochs * config.steps_per_epoch)
    train_stage(
        STAGE,
        [model],
        factor_objective,
        training,
        [run],
        # Pairs are drawn; of this column only the length is used.
        {"pair": torch.zeros(config.steps_per_epoch * training.batch_size)},
        seed=training.seed,
        devices=devices,
        schedules={"temperature": ExponentialSchedule(*config.temperature, steps)},
        augment=pairs.to(device) if isinstance(pairs, OwnPairs) else pairs,
        progress=progress,
    )
    return model


def check_pairs(pairs: PairSampler | OwnPairs, config: FactorsConfig) -> None:
    """Refuse pairs that a model cannot be trained on."""
    if isinstance(pairs, OwnPairs) and config.method == "label":
        raise ConfigError("method must not be 'label' for pairs without labels.")
    with torch.device("meta"):
        FactorVAE(pairs.image_shape, config)


class Factors(Experiment[FactorsJob, PairSampler | OwnPairs, FactorVAE]):
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
        return replace(job, **missing)

    def load(self, job: FactorsJob, device: torch.device) -> PairSampler | OwnPairs:
        if job.data not in WORLDS:
            pairs = load_pairs(job.data, job.image_size)
            for name in ("shared", "angles", "test_pairs"):
                check_setting(job, name, "omitted for your own pairs", lambda value: value is None)
            return pairs
        given: Any = job
        if job.data == "arm":
            world = arm_world(device, angles=given.angles, image_size=given.image_size)
        else:
            world = mpi3d_world(device, angles=given.angles)
        return PairSampler(world, given.shared if given.shared == MIXED else int(given.shared))

    def fingerprint(self, job: FactorsJob, data: PairSampler | OwnPairs) -> str:
        return data.fingerprint() if isinstance(data, OwnPairs) else ""

    def check(self, job: FactorsJob, data: PairSampler | OwnPairs) -> list[str]:
        check_pairs(data, job.factors)
        return []

    def train(
        self,
        jobs: Sequence[FactorsJob],
        data: PairSampler | OwnPairs,
        folders: Sequence[Path],
        devices: Devices,
        progress: ProgressFactory,
    ) -> list[FactorVAE]:
        return [
            fit_factors(data, job.factors, folder, device=devices.device, progress=progress)
            for job, folder in zip(jobs, folders, strict=True)
        ]

    def evaluate(
        self,
        job: FactorsJob,
        model: FactorVAE,
        data: PairSampler | OwnPairs,
        run: RunFolder,
        progress: ProgressFactory,
    ) -> Evaluation:
        model.save(run.model_dir)
        described: dict[str, Any] = {"name": job.data}
        names: Sequence[str] = ()
        if isinstance(data, OwnPairs):
            batch, names = {"first": data.first, "second": data.second}, data.names
            described["pairs"] = len(names)
        else:
            generator = torch.Generator(data.world.images.device).manual_seed(_TEST_SEED)
            batch = data({"pair": torch.zeros(job.test_pairs or 0)}, generator)
            described |= {"images": len(data.world.images), "shared": job.shared}
        views = batch["first"], batch["second"]
        found = model.share(*views, label=batch.get("label"))
        metrics: dict[str, float | None] = {"mean_count": found.number.mean().item()}
        files = {}
        if names:
            columns = [f"dimension {i}" for i in range(found.mask.shape[-1])]
            table = pd.DataFrame(found.mask.int().tolist(), list(names), columns)
            table.insert(0, "shared", table.sum(axis=1))
            files[PAIRS] = table.to_csv(index_label="pair", lineterminator="\n")
        else:
            # Averaged as the model does it, which need not be the plain mean of both codes.
            known = batch["factors"], batch["is_shared"]
            metrics = evaluate_pairs(found.averaged, found.mask, *known)._asdict()
        evidence = estimate_evidence(model, *views, label=batch.get("label"))
        return Evaluation(
            metrics | measure_usage(found) | evidence._asdict(),
            figure_data(model, batch, found),
            [run.path / STAGE],
            files,
            {"data": described, "names": NAMES},
        )

    def title(self, job: FactorsJob, data: PairSampler | OwnPairs) -> str:
        return f"{job.data}: shared factors, {job.factors.method}"


def measure_usage(found: SharedFactors) -> dict[str, float]:
    """The number of dimensions in use, and how many of these a pair shares on average.

    Sharing an unused dimension costs nothing, so the number of shared dimensions can mislead.
    """
    in_use = found.codes.flatten(0, 1).var(0) > LEAST_VARIANCE
    return {
        "used_dimensions": float(in_use.sum()),
        "shared_used": (found.mask * in_use).sum(-1).mean().item(),
    }


# Figures.


def figure_data(model: FactorVAE, batch: Mapping[str, Tensor], found: SharedFactors) -> bytes:
    """All figures, as an npz archive.

    Args:
        model: The model.
        batch: The test pairs.
        found: Their shared dimensions.
    """
    latent = found.mask.shape[-1]
    specs = [_pairs(model, batch, found), _traversals(model, batch["first"][0])]
    if latent < MAX_BARS:
        dimensions = [str(i) for i in range(latent)]
        rates = found.mask.double().mean(0)[:, None].cpu().numpy()
        title = "Fraction of pairs that share"
        specs.append(FigureSpec("bars", "rates", rates, dimensions, (), f"{title} each dimension"))
        number = found.number.cpu()
        counts = number.long().bincount(minlength=latent + 1)[:, None].numpy() / len(number)
        groups = [*dimensions, str(latent)]
        specs.append(
            FigureSpec("bars", "count", counts, groups, (), f"{title} this many dimensions")
        )
    true = batch["is_shared"].sum(-1).cpu() if "is_shared" in batch else torch.zeros(0)
    if len(groups := true.unique().tolist()) > 1:
        means = [[n, found.number.cpu()[true == n].mean().item()] for n in groups]
        title, bars = "Number of shared factors, and mean of its estimate", ("true", "estimated")
        named = [f"n_s = {n}" for n in groups]
        specs.append(FigureSpec("bars", "estimates", means, named, bars, title))
    return pack_figures(specs)


def _pairs(model: FactorVAE, batch: Mapping[str, Tensor], found: SharedFactors) -> FigureSpec:
    """Pairs, their reconstructions, and the same with other shared dimensions."""
    mask, averaged = found.mask[:SHOWN], found.averaged[:SHOWN]
    rows = {view: batch[view][:SHOWN].to(mask) for view in ("first", "second")}
    made = {
        "reconstructed": model.decode(averaged),
        "swapped": model.swap(found.codes[:SHOWN], mask),
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
    values = _compact(torch.stack([*rows.values()]))
    return FigureSpec("grid", "pairs", values, list(rows), (), title, about)


def _traversals(model: FactorVAE, image: Tensor) -> FigureSpec:
    values = torch.linspace(-REACH, REACH, STEPS)
    images = model.traverse(image, values)[:DIMENSIONS]
    rows = [f"dimension {i}" for i in range(len(images))]
    columns = [f"{value:.1f}" for value in values.tolist()]
    title = "An image with one latent dimension set to other values"
    return FigureSpec("grid", "traversals", _compact(images), rows, columns, title)


def _compact(images: Tensor) -> NDArray[Any]:
    """Images in [0, 1] as bytes."""
    whole = (255 * images.detach().clamp(0, 1)).round().to(torch.uint8).cpu()
    return (whole.squeeze(-3) if whole.shape[-3] == 1 else whole).numpy()
