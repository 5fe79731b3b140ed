"""What commands that train have in common: telling how far they are, and ending with a page."""

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from drpm.training.loop import Progress
    from drpm.training.runs import RunFolder


def show_stage(stage: str) -> "Progress":
    """Say what begins, on the error stream, and how far it is."""
    from drpm.training.progress import make_progress

    typer.echo(f"{stage[0].upper()}{stage[1:]}", err=True)
    return make_progress()


def finish(run: "RunFolder", title: str) -> dict[str, Any]:
    """The result of a run, with its page."""
    from drpm.report import write_page
    from drpm.training.runs import PAGE

    # The page is the last that is written: where there is one, all of it is there.
    page = (run.path / PAGE).resolve()
    if not page.exists():
        page = write_page(run.path, title=title)
    return {**run.result(), "folder": str(run.path), "page": str(page)}
