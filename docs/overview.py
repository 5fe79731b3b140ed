"""Draws the picture of the README: ``python docs/overview.py``."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes

import drpm

DOCS = Path(__file__).parent
DIGITS = DOCS.parent / "results" / "table-1" / "mnist" / "drpm-vc" / "seed-0" / "arrays.npz"
LETTERS = "ABCDEFGH"


def matrix(axes: Axes, values: torch.Tensor, title: str, *, numbers: bool = False) -> None:
    """A K x n matrix of probabilities."""
    axes.imshow(values.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_title(title, fontsize=10)
    axes.set_xticks(range(len(LETTERS)), LETTERS)
    axes.set_yticks(range(len(values)), [f"subset {row + 1}" for row in range(len(values))])
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    if numbers:
        for (row, column), value in np.ndenumerate(values.numpy()):
            color = "white" if value > 0.5 else "black"
            axes.text(
                column, row, f"{value:.2f}"[1:], ha="center", va="center", color=color, size=7
            )


def main() -> None:
    log_scores = torch.tensor([2.4, 2.0, 1.6, 0.4, 0.0, -0.4, -2.0, -2.4]).double()
    log_weights = torch.tensor([0.3, 0.0, -0.3]).double()
    figure = plt.figure(figsize=(10, 3.4), layout="constrained")
    left, middle, right = figure.subfigures(1, 3, width_ratios=[1.15, 1, 1])
    exact = drpm.RandomPartition(log_scores, log_weights).marginals()
    matrix(left.subplots(), exact, "Exact: P(element in subset)", numbers=True)
    for axes, temperature in zip(middle.subplots(3, 1), (30.0, 3.0, 0.1), strict=True):
        relaxed = drpm.RelaxedRandomPartition(temperature, log_scores, log_weights, hard="sizes")
        sample = relaxed.rsample(generator=torch.Generator().manual_seed(4))
        matrix(axes, sample, f"Relaxed sample, temperature {temperature:g}")
        axes.set_yticks([])
    samples = np.load(DIGITS, allow_pickle=False)["samples"][:, :9]
    axes = right.subplots()
    axes.imshow(np.block([list(row) for row in samples]), cmap="gray_r")
    axes.set_title("Digits generated from clusters, no labels", fontsize=10)
    axes.set_axis_off()
    figure.savefig(DOCS / "images" / "overview.png", dpi=130)


if __name__ == "__main__":
    main()
