"""What commands that train have in common: telling how far they are, and ending with a page."""

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drpm.training.devices import Devices
    from drpm.training.loop import Progress
    from drpm.training.runs import RunFolder


def show_stage(stage: str) -> "Progress":
    """Say what begins, on the error stream, and how far it is."""
    from drpm.training.progress import make_progress

    typer.echo(f"{stage[0].upper()}{stage[1:]}", err=True)
    return make_progress()


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
