"""A run of ``drpm factors``: a model, its scores and its figures in a folder."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from drpm.data import arm
from drpm.factors.config import FactorsConfig
from drpm.factors.drawn import draw_arrays
from drpm.factors.evaluation import disentanglement_scores, evaluate_pairs
from drpm.factors.fitted import FittedFactors, SharedFactors, measure_evidence
from drpm.factors.own_pairs import OwnPairs, load_pairs
from drpm.factors.pairs import PairSampler, arm_world, mpi3d_world
from drpm.factors.pipeline import STAGE, fit_factors, hash_pairs
from drpm.training import config as configs
from drpm.training import presets
from drpm.training.config import check_setting
from drpm.training.devices import connect_one
from drpm.training.errors import ConfigError
from drpm.training.runs import ARRAYS, RunFolder
from drpm.training.stages import ProgressFactory, hold_runs, open_run
from drpm.training.studies import check_seeds, check_settings, run_seeds

PAIRS: Final = "pairs.csv"
WORLDS: Final = ("arm", "mpi3d")
MIXED: Final = "mixed"

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


@dataclass(frozen=True)
class Job:
    """The settings of a run.

    Args:
        data: ``arm`` or ``mpi3d``, or a folder or file of own pairs, for which ``shared``,
            ``angles`` and ``test_pairs`` are None.
        shared: How many of the seven factors the images of a pair share, or ``mixed``; by default
            3.
        angles: Number of positions of each of the arm's two joints; by default all 40.
        image_size: Side of the arm's images in pixels, by default 64; those of ``mpi3d`` have 64.
            Own pairs are resized to it, if given.
        test_pairs: Number of test pairs, by default 10,000.
        fingerprint: Content hash of own pairs.
        factors: Settings of the model.
    """

    data: str = "arm"
    shared: str | None = None
    angles: int | None = None
    image_size: int | None = None
    test_pairs: int | None = None
    fingerprint: str = ""
    factors: FactorsConfig = field(default_factory=FactorsConfig)

    def __post_init__(self) -> None:
        check_setting(
            self,
            "shared",
            f"a number from 0 to 7 or '{MIXED}'",
            lambda value: value in (None, MIXED, *map(str, range(8))),
        )
        check_setting(
            self, "test_pairs", "at least 100", lambda value: value is None or value >= 100
        )
        latent, factors = self.factors.latent, len(arm.FACTOR_SIZES)
        if self.data in WORLDS and self.factors.method == "label" and latent < factors:
            raise ConfigError(
                f"latent must be at least {factors}, one for each factor, for the method 'label', "
                f"but got {latent}."
            )
        if self.data == "mpi3d":
            check_setting(self, "image_size", "64 for mpi3d", lambda side: side in (None, 64))


def with_defaults(job: Job) -> Job:
    """The job with the defaults of its world of images."""
    if job.data not in WORLDS:
        return job
    defaults: dict[str, Any] = {"shared": "3", "angles": 40, "image_size": 64, "test_pairs": 10_000}
    return replace(job, **{name: x for name, x in defaults.items() if getattr(job, name) is None})


def open_pairs(job: Job, device: torch.device | str) -> tuple[PairSampler | OwnPairs, Job]:
    """The pairs of a job, and the job with its defaults and the hash of own pairs."""
    job = with_defaults(job)
    if job.data not in WORLDS:
        pairs = load_pairs(job.data, job.image_size)
        for name in ("shared", "angles", "test_pairs"):
            check_setting(job, name, "left out for pairs of your own", lambda value: value is None)
        return pairs, replace(job, fingerprint=hash_pairs(pairs))
    given: Any = job
    if job.data == "arm":
        world = arm_world(device, angles=given.angles, image_size=given.image_size)
    else:
        world = mpi3d_world(device, angles=given.angles)
    return PairSampler(world, given.shared if given.shared == MIXED else int(given.shared)), job


def open_job(folder: Path, job: Job, *, overwrite: bool = False) -> RunFolder:
    """The folder of a job, created if it does not exist; other settings are refused."""
    return open_run(folder, configs.dumps(job), overwrite=overwrite, made=(STAGE, PAIRS))


def run_job(
    job: Job,
    pairs: PairSampler | OwnPairs,
    run: RunFolder,
    *,
    device: torch.device | str,
    command: Sequence[str],
    progress: ProgressFactory = lambda stage: None,
) -> None:
    """Train a model, evaluate it and save its figures; a finished run stays as it is.

    Args:
        job: The settings, as :func:`open_pairs` returns them.
        pairs: Likewise.
        run: The folder.
        device: Where to train.
        command: The command that repeats the run.
        progress: From the name of a stage to its progress display.
    """
    if run.status == "finished":
        return
    with hold_runs([run]):
        fitted = fit_factors(pairs, job.factors, run.path, device=device, progress=progress)
        _conclude(job, fitted, pairs, run, command)


def _conclude(
    job: Job,
    fitted: FittedFactors,
    pairs: PairSampler | OwnPairs,
    run: RunFolder,
    command: Sequence[str],
) -> None:
    """Save and evaluate a trained model."""
    fitted.save(run.model_dir)
    run.take_metrics([run.path / STAGE])
    data: dict[str, Any] = {"name": job.data}
    if isinstance(pairs, OwnPairs):
        batch, label, names = {"first": pairs.first, "second": pairs.second}, None, pairs.names
        data["pairs"] = len(names)
    else:
        generator = torch.Generator(pairs.world.images.device).manual_seed(_TEST_SEED)
        batch = pairs({"pair": torch.zeros(job.test_pairs or 0)}, generator)
        label, names = batch["label"], ()
        data |= {"images": len(pairs.world.images), "shared": job.shared}
    found = fitted.share(batch["first"], batch["second"], label=label)
    evidence = measure_evidence(fitted, batch["first"], batch["second"], label=label)
    metrics: dict[str, float | None] = {"mean_count": found.number.mean().item()}
    if isinstance(pairs, OwnPairs):
        run.write_atomic(PAIRS, _table(names, found.mask.tolist()))
    else:
        metrics = score(found, batch["factors"], batch["is_shared"])
    run.write_atomic(ARRAYS, draw_arrays(fitted, batch, found, names))
    run.finish(
        metrics | measure_usage(found) | evidence._asdict(),
        seed=job.factors.training.seed,
        device=fitted.device,
        facts={"command": list(command), "data": data, "names": NAMES},
    )


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


def run_study(
    folder: Path,
    data: str,
    shared: str,
    method: str,
    preset: str,
    seeds: Sequence[int],
    settings: Sequence[str] = (),
    angles: int = 40,
    test_pairs: int = 10_000,
    config: str | None = None,
    device: str = "auto",
) -> None:
    """Train one method on pairs of one kind, for several seeds one after the other.

    The folder holds the runs ``seed-<seed>``, each as ``drpm factors`` leaves one, and the mean and
    standard deviation of every metric in its ``result.json``. An interrupted study is resumed.

    Args:
        folder: The study's folder.
        data: ``arm`` or ``mpi3d``.
        shared: How many factors pairs share, or ``mixed``.
        method: As in :class:`FactorsConfig`.
        preset: All other settings.
        seeds: One for each run.
        settings: Changes to the preset, as ``name=value``.
        angles: Number of positions of each joint.
        test_pairs: Number of test pairs.
        config: Expected hash of the settings, if any.
        device: Where to train.
    """
    check_seeds(seeds)
    factors = configs.override(presets.load(FactorsConfig, preset), [*settings, f"method={method}"])
    digest = check_settings(factors, config)
    where = connect_one(replace(factors.training, device=device)).device
    command = ["drpm", "factors", "--data", data, "--shared", shared, "--method", method]
    command += ["--preset", preset, "--angles", str(angles), "--image-size", "64"]
    command += ["--test-pairs", str(test_pairs)]
    command += [word for setting in settings for word in ("--set", setting)]

    def train(folders: Sequence[Path]) -> None:
        pairs, job = open_pairs(Job(data, shared, angles, 64, test_pairs, factors=factors), where)
        for seed, path in zip(seeds, folders, strict=True):
            training = replace(factors.training, seed=seed)
            own = replace(job, factors=replace(factors, training=training))
            run = open_job(path, own)
            run_job(own, pairs, run, device=where, command=[*command, "--seeds", str(seed)])

    described = {
        "data": data,
        "shared": shared,
        "method": method,
        "preset": preset,
        "settings": list(settings),
        "config": digest,
        "angles": angles,
        "test_pairs": test_pairs,
    }
    run_seeds(folder, described, seeds, train, device=where, together=False)
