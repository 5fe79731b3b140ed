"""Shared factors as an experiment."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from drpm.experiments.base import Evaluation, Experiment
from drpm.factors.config import MIXED, WORLDS, FactorsJob
from drpm.factors.evaluation import disentanglement_scores, evaluate_pairs
from drpm.factors.figures import figure_data
from drpm.factors.fitted import FittedFactors, SharedFactors, measure_evidence
from drpm.factors.own_pairs import OwnPairs, load_pairs
from drpm.factors.pairs import PairSampler, arm_world, mpi3d_world
from drpm.factors.training import STAGE, check_pairs, fit_factors, hash_pairs
from drpm.training.config import check_setting
from drpm.training.devices import Devices
from drpm.training.loop import ProgressFactory
from drpm.training.runs import RunFolder

PAIRS: Final = "pairs.csv"

SCORES: Final = {
    "shared_accuracy": "Shared",
    "independent_accuracy": "Independent",
    "count_error": "Error of count",
    "mean_count": "Count",
    "disentanglement": "D",
    "completeness": "C",
    "informativeness": "I",
    "mutual_information_gap": "MIG",
    "pair_evidence": "Evidence",
}
NAMES: Final = {
    **SCORES,
    "used_dimensions": "Dimensions in use",
    "shared_used": "Count of those in use",
    "minus_loss": "Minus the loss",
    "reconstruction": "Reconstruction error",
    "latent_divergence": "KL of codes",
    "partition_divergence": "KL of the partition",
}
"""Display names of metrics."""

# A dimension is in use if the variance of its codes, which is 1 under the prior, exceeds this.
LEAST_VARIANCE: Final = 0.1

# The same test pairs for every method and seed.
_TEST_SEED: Final = 1_000_000


class Factors(Experiment[FactorsJob, PairSampler | OwnPairs, FittedFactors]):
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
        return job.with_fields(**missing)

    def load(self, job: FactorsJob, device: torch.device) -> PairSampler | OwnPairs:
        if job.data not in WORLDS:
            pairs = load_pairs(job.data, job.image_size)
            for name in ("shared", "angles", "test_pairs"):
                check_setting(
                    job, name, "left out for pairs of your own", lambda value: value is None
                )
            return pairs
        given: Any = job
        if job.data == "arm":
            world = arm_world(device, angles=given.angles, image_size=given.image_size)
        else:
            world = mpi3d_world(device, angles=given.angles)
        return PairSampler(world, given.shared if given.shared == MIXED else int(given.shared))

    def fingerprint(self, job: FactorsJob, data: PairSampler | OwnPairs) -> str:
        return hash_pairs(data) if isinstance(data, OwnPairs) else ""

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
    ) -> list[FittedFactors]:
        return [
            fit_factors(data, job.factors, folder, device=devices.device, progress=progress)
            for job, folder in zip(jobs, folders, strict=True)
        ]

    def evaluate(
        self,
        job: FactorsJob,
        model: FittedFactors,
        data: PairSampler | OwnPairs,
        run: RunFolder,
        progress: ProgressFactory,
    ) -> Evaluation:
        model.save(run.model_dir)
        described: dict[str, Any] = {"name": job.data}
        if isinstance(data, OwnPairs):
            batch, label, names = {"first": data.first, "second": data.second}, None, data.names
            described["pairs"] = len(names)
        else:
            generator = torch.Generator(data.world.images.device).manual_seed(_TEST_SEED)
            batch = data({"pair": torch.zeros(job.test_pairs or 0)}, generator)
            label, names = batch["label"], ()
            described |= {"images": len(data.world.images), "shared": job.shared}
        found = model.share(batch["first"], batch["second"], label=label)
        evidence = measure_evidence(model, batch["first"], batch["second"], label=label)
        metrics: dict[str, float | None] = {"mean_count": found.number.mean().item()}
        files = {}
        if isinstance(data, OwnPairs):
            files[PAIRS] = _table(names, found.mask.tolist())
        else:
            metrics = score(found, batch["factors"], batch["is_shared"])
        return Evaluation(
            metrics | measure_usage(found) | evidence._asdict(),
            figure_data(model, batch, found, names),
            [run.path / STAGE],
            files,
            {"data": described, "names": NAMES},
        )

    def title(self, job: FactorsJob, data: PairSampler | OwnPairs) -> str:
        return f"{job.data}: shared factors, {job.factors.method}"


def measure_usage(found: SharedFactors) -> dict[str, float]:
    """The number of dimensions in use, and how many of these a pair shares on average.

    Sharing an empty dimension costs nothing, so the number of shared dimensions alone says little.
    """
    in_use = found.codes.flatten(0, 1).var(0) > LEAST_VARIANCE
    return {
        "used_dimensions": float(in_use.sum()),
        "shared_used": (found.mask * in_use).sum(-1).mean().item(),
    }


def score(found: SharedFactors, factors: Tensor, is_shared: Tensor) -> dict[str, float | None]:
    """All scores on test pairs of known factors."""
    # Averaged as the model does it, which need not be the plain mean of both codes.
    scores = evaluate_pairs(found.averaged, found.mask, factors, is_shared)
    single = disentanglement_scores(found.codes[:, 0], factors[:, 0])
    return {
        "shared_accuracy": scores.shared.mean,
        "independent_accuracy": scores.independent.mean,
        "count_error": scores.count_error,
        "mean_count": scores.mean_count,
        **single._asdict(),
    }


def _table(names: Sequence[str], masks: Sequence[Sequence[float]]) -> str:
    """The shared dimensions of every pair, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["pair", "shared", *(f"dimension {i}" for i in range(len(masks[0])))])
    for name, mask in zip(names, masks, strict=True):
        writer.writerow([name, int(sum(mask)), *(int(x) for x in mask)])
    return text.getvalue()
