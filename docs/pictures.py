"""The pictures that the pages of the site show: those of the examples, and of the method.

`python docs/pictures.py` draws them into docs/drawn, as `make docs` does.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
EXAMPLES = ("marginals", "exact_and_bounds", "temperatures", "size_limits", "affinities", "tasks")

SCORES = torch.tensor([3.0, 0.6, 1.8, 0.3, 2.2, 0.9, 1.2])
SIZES, ORDER = (3, 1, 3), (4, 0, 2, 5, 6, 1, 3)


def ball(axis: Axes, x: float, y: float, element: int, color: str = "0.85") -> None:
    is_light = sum(to_rgb(color)) > 1.5
    axis.add_patch(plt.Circle((x, y), 0.36, facecolor=color, edgecolor="0.3"))
    name = "abcdefg"[element]
    axis.text(x, y, name, ha="center", va="center", color="black" if is_light else "white")


def box(axis: Axes, left: float, y: float, size: int, color: str) -> None:
    corner, width = (left - 0.46, y - 0.46), size - 0.08
    axis.add_patch(plt.Rectangle(corner, width, 0.92, fill=False, ec=color, lw=2))


def steps() -> Figure:
    """Elements with scores; sizes; an order; the filled subsets."""
    figure, axis = plt.subplots(figsize=(5, 5))
    places = {
        element: (rank, sum(rank >= stop for stop in (3, 4))) for rank, element in enumerate(ORDER)
    }
    for element, score in enumerate(SCORES.tolist()):
        axis.add_patch(plt.Rectangle((element - 0.2, 5.5), 0.4, 0.3 * score, color="0.75"))
        ball(axis, element, 5.0, element)
    left = 0
    for subset, size in enumerate(SIZES):
        for height in (3.4, 0.0):
            box(axis, left, height, size, f"C{subset}")
        left += size
    for element, (rank, subset) in places.items():
        ball(axis, rank, 1.7, element)
        ball(axis, rank, 0.0, element, f"C{subset}")
    texts = ["elements and their scores", "1. sample sizes", "2. sample an order", "3. fill"]
    for height, text in zip((6.7, 4.1, 2.3, 0.7), texts, strict=True):
        axis.text(-0.46, height, text, va="center", fontsize=11)
    axis.set(xlim=(-0.6, 6.6), ylim=(-0.6, 7.0), aspect="equal")
    axis.axis("off")
    return figure


def integrals() -> Figure:
    """The two integrals whose product is the probability of the partition, given its sizes."""
    figure, axes = plt.subplots(2, 1, figsize=(5, 4.6), sharex=True)
    u = torch.linspace(0, 1, 400)
    starts = (0, 3, 4, 7)
    for subset, axis in enumerate(axes):
        chosen = ORDER[starts[subset] : starts[subset + 1]]
        members, names = SCORES[list(chosen)], ", ".join("abcdefg"[x] for x in chosen)
        later = SCORES[list(ORDER[starts[subset + 1] :])].sum()
        curve = (1 - u[:, None] ** (members / later)).prod(-1)
        area = torch.trapezoid(curve, u).item()
        axis.plot(u, curve, color=f"C{subset}")
        axis.fill_between(u, curve, color=f"C{subset}", alpha=0.25)
        title = f"subset {subset + 1} is {{{names}}}: area {area:.3f}"
        axis.set(ylabel="integrand", title=title)
    axes[-1].set_xlabel("u")
    return figure


PICTURES: Mapping[str, Callable[[], Figure]] = {"steps": steps, "integrals": integrals}


def draw_all(folder: Path) -> None:
    sys.path.insert(0, str(ROOT))
    examples = {name: import_module(f"examples.{name}").draw for name in EXAMPLES}
    folder.mkdir(exist_ok=True)
    with plt.rc_context(fname=ROOT / "docs" / "matplotlibrc"):
        plt.switch_backend("agg")
        for name, draw in {**PICTURES, **examples}.items():
            figure = draw()
            figure.savefig(folder / f"{name}.png")
            plt.close(figure)


if __name__ == "__main__":
    draw_all(ROOT / "docs" / "drawn")
