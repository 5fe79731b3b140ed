"""The studies as sweeps, for ``drpm reproduce``."""

from dataclasses import asdict
from pathlib import Path

from drpm.studies import bounds as study
from drpm.training import toml
from drpm.training.runs import RunFolder
from drpm.training.sweeps import Sweep, SweepRun, register

DRAWS = 1_000_000


@register("bounds")
def bounds() -> Sweep:
    """The bounds on the mass of a partition against the exact mass (appendix)."""
    arguments = {"draws": DRAWS, "seed": 0}
    return Sweep("bounds", (SweepRun("seed-0", "drpm.studies.sweeps:run_bounds", arguments),))


def run_bounds(folder: Path, draws: int, seed: int) -> None:
    """The study of the bounds as a run.

    It takes seconds, so one that was cut off is done again from the start.

    Arguments:
        folder: The run's folder.
        draws: Monte Carlo draws per setting.
        seed: Settles the random parameters and the draws.
    """
    # Only now: a list of sweeps can do without matplotlib.
    from drpm.studies import bounds_figures as figures

    config = toml.dumps({"draws": draws, "seed": seed})
    run = RunFolder.create(folder, config, overwrite=True)
    with run.lock():
        results = study.run(draws, seed)
        summaries = [study.summarize(masses) for masses in results]
        study.write_summary(summaries, run.path / "bounds.json", num_draws=draws, seed=seed)
        run.figures_dir.mkdir(exist_ok=True)
        figures.save_figures(results, run.figures_dir)
        run.finish({summary.key: asdict(summary) for summary in summaries})
