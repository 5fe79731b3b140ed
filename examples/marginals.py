"""The exact probability of every element in every subset: python examples/marginals.py.

Subsets are filled in order, so elements with high scores are likely in the first subset. With
larger differences between the scores, the partition is more certain.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from drpm import RandomPartition

ELEMENTS = 20
LOG_WEIGHTS = torch.tensor([0.0, 0.7, 0.0])
SCALES = (0.0, 0.3, 2.0)


def marginals(scale: float) -> Tensor:
    """(3, 20), for log-scores that fall by ``scale`` from one element to the next."""
    log_scores = -scale * torch.arange(ELEMENTS)
    return RandomPartition(log_scores, LOG_WEIGHTS).marginals()


def draw() -> Figure:
    figure, axes = plt.subplots(3, figsize=(5, 6), sharex=True, layout="constrained")
    elements = torch.arange(1, ELEMENTS + 1)
    for axis, scale in zip(axes, SCALES, strict=True):
        bottom = torch.zeros(ELEMENTS)
        for subset, probs in enumerate(marginals(scale), start=1):
            axis.bar(elements, probs, bottom=bottom, width=1, label=f"subset {subset}")
            bottom = bottom + probs
        axis.set(title=f"log-scores fall by {scale:g}", ylabel="probability", ylim=(0, 1))
    axes[-1].set(xlabel="element", xticks=[1, 10, 20])
    handles, labels = axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


if __name__ == "__main__":
    draw().savefig("marginals.png")
