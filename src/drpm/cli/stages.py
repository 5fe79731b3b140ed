"""What commands that train have in common: telling how far they are, and ending with a page."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from drpm.cli.tables import print_table
from drpm.training.summaries import spread

if TYPE_CHECKING:
    from drpm.training.devices import Devices
    from drpm.training.loop import Progress
    from drpm.training.runs import RunFolder


J = TypeVar("J")

# What several seeds came to, in the folder of all of them.
SUMMARY: Final = "summary.json"


def show_stage(stage: str) -> "Progress":
    """Say what begins, on the error stream, and how far it is."""
    from drpm.training.progress import make_progress

    typer.echo(f"{stage[0].upper()}{stage[1:]}", err=True)
    return make_progress()


def train_runs(
    jobs: Sequence[J],
    folders: "Sequence[Path]",
    devices: "Devices",
    open_job: "Callable[[Path, J], RunFolder]",
    do_jobs: "Callable[[list[J], list[RunFolder], list[list[str]]], object]",
) -> "list[RunFolder]":
    """Do what is not finished, in groups that are trained together.

    Arguments:
        jobs: One for each run.
        folders: Where each goes. All are opened before any is begun.
        devices: What they are trained on.
        open_job: What begins the run of a job, or goes on with it.
        do_jobs: What does the jobs of a group, with their runs and commands.
    """
    runs = [open_job(folder, job) for folder, job in zip(folders, jobs, strict=True)]
    words = ["drpm", *sys.argv[1:]]
    for group in groups_to_train(runs, devices):
        do_jobs([jobs[i] for i in group], [runs[i] for i in group], [words for _ in group])
    return runs


def groups_to_train(runs: "Sequence[RunFolder]", devices: "Devices") -> list[range]:
    """Which runs are trained together: all of them on one GPU, each by itself elsewhere.

    On a CPU several at once take as long as one after the other, or longer, and alone each has its
    own noise.

    Arguments:
        runs: What is to be trained. Groups that are finished are left out.
        devices: Where.
    """
    alone = [range(index, index + 1) for index in range(len(runs))]
    one_card = devices.device.type == "cuda" and devices.count == 1
    together = one_card and all(run.status != "finished" for run in runs)
    groups = [range(len(runs))] if together else alone
    return [group for group in groups if any(runs[i].status != "finished" for i in group)]


def finish(run: "RunFolder", title: str) -> dict[str, Any]:
    """The result of a run, with its page."""
    from drpm.report import write_page
    from drpm.training.runs import PAGE

    # The page is the last that is written: where there is one, all of it is there.
    page = (run.path / PAGE).resolve()
    if not page.exists():
        page = write_page(run.path, title=title)
    return {**run.result(), "folder": str(run.path), "page": str(page)}


def beside_page(result: Mapping[str, Any], name: str) -> Path:
    """A file of a run, so that its path is told as that of the page is.

    Arguments:
        result: As :func:`finish` gives it.
        name: The file's.
    """
    return Path(result["page"]).with_name(name)


def finish_all(runs: Sequence["RunFolder"], title: str, out: Path) -> list[dict[str, Any]]:
    """The results of all seeds, each with its page, and of several their means in one file.

    Arguments:
        runs: The finished runs, one for each seed.
        title: What stands above each page.
        out: The folder of all of them.
    """
    from drpm.training.runs import RunFolder
    from drpm.training.summaries import DEVIATION, summarize_results

    results = [finish(run, title) for run in runs]
    if len(results) > 1:
        summary = {
            "seeds": [result["seed"] for result in results],
            "deviation": DEVIATION,
            "metrics": summarize_results(results),
        }
        RunFolder(out).write_atomic(SUMMARY, json.dumps(summary, indent=2) + "\n")
    return results


def show_results(
    results: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    *,
    as_json: bool,
    digits: int = 3,
) -> None:
    """What the runs of all seeds came to: for people, or for programs.

    Arguments:
        results: One for each seed, as :func:`finish` gives it.
        columns: From the name of a metric that is shown to what stands above it.
        as_json: Whether for programs.
        digits: How many of a number are shown.
    """
    if as_json:
        typer.echo(json.dumps(list(results) if len(results) > 1 else results[0], indent=2))
        return
    rows = [
        [str(result["seed"]), *(_number(result["metrics"][name], digits) for name in columns)]
        for result in results
    ]
    if len(results) > 1:
        found = [[result["metrics"][name] for result in results] for name in columns]
        rows.append(["mean", *("-" if None in x else spread(x, digits) for x in found)])
    print_table(["Seed", *columns.values()], rows)
    for result in results:
        typer.echo(f"Page: {result['page']}")


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
