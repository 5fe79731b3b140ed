"""One page of results: sections of text, each with figures that lie beside the page."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from drpm.training.checkpoint import write_atomic

FOLDER: Final = "figures"  # beside the page


class ResultFigure(NamedTuple):
    """A figure of the page.

    Arguments:
        name: That of its file.
        about: What it shows, before the caption.
        caption: Whose results it shows.
        draw: What makes it, as a PNG.
        told: Sentences after the caption, that say how to read it.
    """

    name: str
    about: str
    caption: str
    draw: Callable[[], bytes]
    told: str = ""

    @property
    def link(self) -> str:
        return f"{FOLDER}/{self.name}"

    @property
    def markdown(self) -> str:
        """The figure as a part of the page."""
        above = f"{self.about}: {self.caption}. {self.told}".rstrip()
        return f"{above}\n\n![{self.caption}]({self.link})"


class Section(NamedTuple):
    """A part of the page: a text in Markdown, then figures."""

    text: str
    figures: tuple[ResultFigure, ...] = ()


def page_text(sections: Iterable[Section]) -> str:
    """The page as Markdown."""
    parts = []
    for section in sections:
        parts += [section.text, *(figure.markdown for figure in section.figures)]
    return "\n".join(f"{part.rstrip()}\n" for part in parts)


def write_page(sections: Iterable[Section], page: Path) -> None:
    """Write the page and its figures.

    Arguments:
        sections: What it holds.
        page: Its file; figures go into a folder beside it.
    """
    sections = list(sections)
    text = page_text(sections)
    for figure in (figure for section in sections for figure in section.figures):
        path = page.parent / figure.link
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, figure.draw())
    write_atomic(page, text.encode())
