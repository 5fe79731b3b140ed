"""What all pictures share: colours, names that fit, and the way to a PNG file."""

import warnings
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

INK: Final = "#333333"
GREY: Final = "#8a8a8a"
FAINT: Final = "#e4e4e4"
LINE: Final = "#1f77b4"

WIDTH: Final = 9.0  # inches, of every picture that could be any width
PAD: Final = 0.09
RESOLUTION: Final = 150

_NAME_TAG: Final = "drpm-picture"

# Beyond these colours nobody could tell which is which.
MAX_COLOURS: Final = 20

# The strong colours first: up to ten groups never need two shades of one hue.
_STRONG_FIRST: Final = (*range(0, 20, 2), *range(1, 20, 2))


def colours(count: int) -> NDArray[np.float64]:
    """One colour (red, green, blue) for each of some groups; a group has the same everywhere."""
    if count <= MAX_COLOURS:
        chosen = colormaps["tab20"](_STRONG_FIRST[:count])
    else:
        chosen = colormaps["turbo"](np.linspace(0.05, 0.95, count))
    result: NDArray[np.float64] = np.asarray(chosen, dtype=np.float64).reshape(count, 4)[:, :3]
    return result


def new_figure(width: float, height: float, *, layout: Any = "constrained") -> Figure:
    """An empty figure, in inches."""
    figure = Figure(figsize=(width, height), layout=layout)
    if (engine := figure.get_layout_engine()) is not None:
        engine.set(w_pad=PAD, h_pad=0.07)  # type: ignore[call-arg]
    # Attached to the file writer directly: no window system and no global state are involved.
    FigureCanvasAgg(figure)
    return figure


def png(figure: Figure, name: str | None = None) -> bytes:
    """The figure as a PNG file, the same bytes for the same figure.

    Arguments:
        figure: What to draw.
        name: What :func:`bears_name` will recognise the file by.
    """
    content = BytesIO()
    with warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; the page has it in full.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        # Without its name and version the program that drew it leaves no trace in the bytes.
        figure.savefig(
            content,
            format="png",
            dpi=RESOLUTION,
            facecolor="white",
            metadata={"Software": None} | ({} if name is None else {_NAME_TAG: name}),
        )
    return content.getvalue()


def bears_name(path: Path, name: str) -> bool:
    """Whether a file is a picture that :func:`png` drew under a name."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        start = file.read(1024)
    # A text chunk with its length, in front of the pixels.
    text = f"{_NAME_TAG}\0{name}".encode(errors="surrogateescape")
    return start.startswith(b"\x89PNG") and len(text).to_bytes(4, "big") + b"tEXt" + text in start


def reduced(content: bytes, count: int = 64) -> bytes:
    """A PNG file of grey images with few colours, which is a fraction as large.

    Not for charts: the faint colours of their bands would come together.

    Arguments:
        content: The file.
        count: How many colours; those of groups stay themselves, it is greys that come together.
    """
    from PIL import Image

    smaller = BytesIO()
    with Image.open(BytesIO(content)) as picture:
        few = picture.convert("RGB").quantize(
            count, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
        few.save(smaller, "PNG", optimize=True)
    return smaller.getvalue()


def label(name: str, longest: int = 20) -> str:
    """A name from outside as a text to draw: one line, cut where too long, dollars no formula."""
    name = " ".join(name.split())
    if len(name) > longest:
        name = f"{name[: longest - 1]}…"
    return name.replace("$", r"\$")


def bare(axes: Axes, *keep: str) -> None:
    """Remove the frame, except for the sides to keep, and let the ticks step back."""
    for side, spine in axes.spines.items():
        spine.set_visible(side in keep)
        spine.set_color(GREY)
    axes.tick_params(labelsize=8, color=GREY, labelcolor=INK, length=2)


def title(figure: Figure, text: str) -> None:
    """What stands above a whole picture, at its left edge."""
    figure.suptitle(text, x=PAD / figure.get_figwidth(), ha="left", size=10, color=INK)


def title_width(text: str) -> float:
    """Inches that a title needs, and some more."""
    return 0.085 * len(text) + 2 * PAD


def text_width(texts: Iterable[str], size: float = 8) -> float:
    """Inches that the longest of some texts needs, and a little more."""
    return 0.0085 * size * max(map(len, texts), default=0)


def heading(axes: Axes, text: str, *, size: float = 8.5) -> None:
    """What stands above one panel, where its axis starts."""
    axes.set_title(text, loc="left", size=size, color=INK)


def counted(count: int, noun: str) -> str:
    """A count with its noun in the right number."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def number(value: float) -> str:
    """A count or an expected count."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
