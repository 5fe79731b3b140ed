"""A study: one model for several seeds that are trained together, and what comes of them."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from drpm.training import config as configs
from drpm.training import toml
from drpm.training.errors import ConfigError
from drpm.training.runs import RunFolder
from drpm.training.stages import open_run
from drpm.training.summaries import DEVIATION, summarize_results


def run_seeds(
    folder: Path,
    described: Mapping[str, Any],
    seeds: Sequence[int],
    train: Callable[[Sequence[Path]], object],
    *,
    device: torch.device | str,
    together: bool = True,
) -> None:
    """Do the runs of a study, or go on with them, and sum them up.

    The folder ends up with the runs ``seed-<seed>`` and with the mean and the deviation of every
    metric in its own ``result.json``.

    Arguments:
        folder: The study's folder.
        described: What the study is; another one in the same folder is refused.
        seeds: One for each run.
        train: From the folders of all runs to the finished runs in them.
        device: Where that is done.
        together: Whether that is done for all at once, so that each has the time of the whole; or
            for one after the other.
    """
    study = open_run(folder, toml.dumps({**described, "seeds": list(seeds)}))
    folders = [folder / f"seed-{seed}" for seed in seeds]
    with study.lock():
        if not all(RunFolder(path).status == "finished" for path in folders):
            train(folders)
        results = [RunFolder(path).result() for path in folders]
        study.finish(
            summarize_results(results),
            device=device,
            facts={**described, "seeds": list(seeds), "deviation": DEVIATION},
            wall_time=(max if together else sum)(result["wall_time"] for result in results),
        )


def digest_settings(config: Any) -> str:
    """What all settings of a configuration are known by: a preset's name may come to mean others.

    Arguments:
        config: A configuration, as :mod:`drpm.training.config` has them.
    """
    return hashlib.sha256(configs.dumps(config).encode()).hexdigest()[:16]


def check_settings(config: Any, expected: str | None) -> str:
    """What settings are known by; refused where something else was expected."""
    known = digest_settings(config)
    if expected not in (None, known):
        raise ConfigError(
            f"config must be what the settings are known by, {known!r}, but got {expected!r}; "
            "they have changed since."
        )
    return known


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse seeds that would have two runs do the same."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds must be one or more that differ, but got {list(seeds)}.")
