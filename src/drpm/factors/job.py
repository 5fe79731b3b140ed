"""One model of shared factors, with everything a person wants to see of it, in a folder."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from drpm.data import arm
from drpm.distributions.size_tables import list_pair
from drpm.factors.config import FactorsConfig
from drpm.factors.disentanglement import disentanglement_scores
from drpm.factors.drawn import draw_arrays
from drpm.factors.evaluation import evaluate_pairs
from drpm.factors.evidence import measure_evidence
from drpm.factors.fitted import FittedFactors, SharedFactors
from drpm.factors.own_pairs import OwnPairs, load_pairs
from drpm.factors.pairs import PairSampler, arm_world, mpi3d_world
from drpm.factors.pipeline import STAGE, fingerprint_pairs, fit_factors
from drpm.report.style import counted
from drpm.training import config as configs
from drpm.training.config import check_setting
from drpm.training.errors import ConfigError
from drpm.training.runs import ARRAYS, RunFolder
from drpm.training.stages import ProgressFactory, hold_runs, open_run

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
    "reconstruction": "Error of images",
    "latent_divergence": "Divergence of codes",
    "partition_divergence": "Divergence of what is shared",
}
"""What metrics are called wherever people read them."""

# A part of the paper's steps after which a model may have learnt what it can.
_SHORT: Final = 0.1
# A part of the pairs; where so many are told the same, that is no answer.
_MOST: Final = 0.9

# Of the codes of a dimension that is in use, where the prior has 1; with less it says little.
LEAST_VARIANCE: Final = 0.1

# The same test pairs for every method and seed.
_TEST_SEED: Final = 1_000_000


@dataclass(frozen=True)
class Job:
    """What is needed to do it again.

    Arguments:
        data: ``arm`` or ``mpi3d``, or a folder or file with pairs of one's own, for which there
            is neither ``shared`` nor ``angles`` nor ``test_pairs``.
        shared: How many of the seven factors the images of a pair share, or ``mixed``; none is 3.
        angles: Of the 40 positions of each of the arm's two joints, how many there are; none is
            all of them.
        image_size: The side of the arm's images in pixels, and none is 64; those of ``mpi3d`` have
            64. Pairs of one's own are resized to it, and none leaves them as they are.
        test_pairs: How many pairs the model is judged on; none is 10,000.
        fingerprint: What own pairs are known by.
        factors: The settings.
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


def in_full(job: Job) -> Job:
    """The same, with what is left out for a world of images."""
    if job.data not in WORLDS:
        return job
    usual: dict[str, Any] = {"shared": "3", "angles": 40, "image_size": 64, "test_pairs": 10_000}
    return replace(job, **{name: x for name, x in usual.items() if getattr(job, name) is None})


def open_pairs(job: Job, device: torch.device | str) -> PairSampler | OwnPairs:
    """Where the pairs of a job come from."""
    job = in_full(job)
    if job.data not in WORLDS:
        # First of all whether there are any: this may be a world's name, misspelt.
        pairs = load_pairs(job.data, job.image_size)
        for name in ("shared", "angles", "test_pairs"):
            check_setting(job, name, "left out for pairs of your own", lambda value: value is None)
        return pairs
    given: Any = job
    if job.data == "arm":
        world = arm_world(device, angles=given.angles, image_size=given.image_size)
    else:
        world = mpi3d_world(device, angles=given.angles)
    return PairSampler(world, given.shared if given.shared == MIXED else int(given.shared))


def pairs_known_by(pairs: PairSampler | OwnPairs) -> str:
    """What pairs are known by besides the name of their data: a name is enough for a world."""
    return fingerprint_pairs(pairs) if isinstance(pairs, OwnPairs) else ""


def open_job(folder: Path, job: Job, *, overwrite: bool = False) -> RunFolder:
    """The folder of a job, new if there is none; one with other settings is refused."""
    return open_run(folder, configs.dumps(job), overwrite=overwrite, made=(STAGE, PAIRS))


def do_jobs(
    jobs: Sequence[Job],
    pairs: PairSampler | OwnPairs,
    runs: Sequence[RunFolder],
    *,
    device: torch.device | str,
    commands: Sequence[Sequence[str]],
    progress: ProgressFactory = lambda stage: None,
) -> list[dict[str, Any]]:
    """Do jobs that differ in their seeds alone, trained together where there are several.

    Arguments:
        jobs: One for each seed.
        pairs: As :func:`open_pairs` has them.
        runs: The folder of every job. One that is finished stays as it is.
        device: Where.
        commands: What does each of them again.
        progress: From the name of a stage to whoever shows how far it is.

    Returns:
        The results as the folders' ``result.json`` have them.
    """
    seeds = [job.factors.training.seed for job in jobs]
    with hold_runs(runs):
        fitted = fit_factors(
            pairs,
            jobs[0].factors,
            [run.path for run in runs],
            seeds=seeds,
            device=device,
            progress=progress,
        )
        for job, model, run, command in zip(jobs, fitted, runs, commands, strict=True):
            if run.status != "finished":
                facts = {"command": list(command), "stacked": seeds}
                _conclude(job, model, pairs, run, facts)
    return [run.result() for run in runs]


def _conclude(
    job: Job,
    fitted: FittedFactors,
    pairs: PairSampler | OwnPairs,
    run: RunFolder,
    facts: dict[str, Any],
) -> None:
    """Judge a model, and leave it in the folder."""
    given: Any = in_full(job)
    fitted.model.config = job.factors
    fitted.save(run.model_dir)
    run.take_metrics(run.path / STAGE)
    if isinstance(pairs, OwnPairs):
        found = fitted.share(pairs.first, pairs.second)
        run.write_atomic(PAIRS, _table(pairs.names, found.mask.tolist()))
        # There are no others: how likely the pairs are is that of those it has learnt from.
        evidence = measure_evidence(fitted, pairs.first, pairs.second)
        metrics: dict[str, Any] = {"mean_count": found.number.mean().item()}
        batch = {"first": pairs.first, "second": pairs.second}
        data: dict[str, Any] = {"name": job.data, "pairs": len(pairs.names)}
    else:
        generator = torch.Generator(pairs.world.images.device).manual_seed(_TEST_SEED)
        batch = pairs({"pair": torch.zeros(given.test_pairs)}, generator)
        found = fitted.share(batch["first"], batch["second"], label=batch["label"])
        evidence = measure_evidence(fitted, batch["first"], batch["second"], label=batch["label"])
        metrics = judge(found, batch["factors"], batch["is_shared"])
        data = {"name": job.data, "images": len(pairs.world.images), "shared": given.shared}
    names = pairs.names if isinstance(pairs, OwnPairs) else ()
    run.write_atomic(ARRAYS, draw_arrays(fitted, batch, found, names))
    run.finish(
        metrics | measure_usage(found) | evidence._asdict(),
        seed=job.factors.training.seed,
        device=fitted.device,
        facts={**facts, "data": data, "names": NAMES, "about": describe(job.factors, found)},
    )


def describe(config: FactorsConfig, found: SharedFactors) -> str:
    """What a reader of the figures has to know beforehand; nothing for a long, telling run.

    Arguments:
        config: The settings.
        found: What the model found in the pairs that it was judged on.
    """
    sentences = []
    dimensions = counted(config.latent, "dimension")
    steps, full = (x.training.epochs * x.steps_per_epoch for x in (config, FactorsConfig()))
    if steps < full * _SHORT:
        took = counted(steps, "step")
        sentences.append(f"Trained for {took}, where the paper's study takes {full:,}.")
    if config.method in ("drpm", "hg"):
        weights = torch.tensor(config.prior_log_weights, dtype=torch.float64)
        log_masses = list_pair(config.latent, weights).log_masses.flip(-1)
        # An odd number of dimensions has two that are as likely.
        likeliest = (log_masses >= log_masses.max() - 1e-9).nonzero()[:, 0].double()
        same = torch.isin(found.number.cpu().double(), likeliest).double().mean().item()
        if same >= _MOST:
            numbers = " or ".join(f"{number:.0f}" for number in likeliest.tolist())
            sentences.append(
                f"{same:.0%} of the pairs are said to share {numbers} of {dimensions}, which the "
                "prior takes for the likeliest: it says little about the pairs."
            )
    if config.method == "label":
        sentences.append(
            "Label-VAE always takes all dimensions but one as shared, whatever the pairs share."
        )
    elif sentences:
        sentences.append(f"Of {dimensions} {_tell_usage(**measure_usage(found))}.")
    return " ".join(sentences)


def _tell_usage(used_dimensions: float, shared_used: float) -> str:
    """How many dimensions are in use, and how many of these are shared, in words."""
    if used_dimensions == 0:
        return "none is in use"
    if used_dimensions == 1:
        return f"1 is in use, and {shared_used:.0%} of the pairs share it"
    return (
        f"{used_dimensions:.0f} are in use, and pairs share {shared_used:.1f} of these on average"
    )


def measure_usage(found: SharedFactors) -> dict[str, float]:
    """How many dimensions say anything, and how many of these a pair shares on average.

    An empty dimension is shared at no cost, so that a number of shared ones says little by itself.
    """
    in_use = found.codes.flatten(0, 1).var(0) > LEAST_VARIANCE
    return {
        "used_dimensions": float(in_use.sum()),
        "shared_used": (found.mask * in_use).sum(-1).mean().item(),
    }


def judge(found: SharedFactors, factors: Tensor, is_shared: Tensor) -> dict[str, float | None]:
    """What a model is worth on test pairs, by all scores that go by known factors."""
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
    """What every pair shares, as a csv file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    dimensions = len(masks[0]) if masks else 0
    writer.writerow(["pair", "shared", *(f"dimension {i}" for i in range(dimensions))])
    for name, mask in zip(names, masks, strict=True):
        writer.writerow([name, int(sum(mask)), *(int(x) for x in mask)])
    return text.getvalue()
