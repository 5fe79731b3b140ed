"""One relaxed sample at five temperatures: python examples/temperatures.py.

The noise is always the same, so only the temperature differs. As it falls, the soft sample
approaches the hard one.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from drpm import RelaxedRandomPartition

TEMPERATURES = (5.0, 2.0, 1.0, 0.3, 0.005)
LOG_SCORES = torch.linspace(2, -2, 12)
LOG_WEIGHTS = torch.zeros(3)


def sample(temperature: float, hard: bool) -> Tensor:
    """A sample (3, 12), always with the same noise."""
    law = RelaxedRandomPartition(temperature, LOG_SCORES, LOG_WEIGHTS, hard=hard)
    return law.rsample(generator=torch.Generator().manual_seed(4))


def draw() -> Figure:
    rows = len(TEMPERATURES) + 1
    figure, axes = plt.subplots(rows, 1, figsize=(5, 7), sharex=True, layout="constrained")
    samples = [sample(temperature, hard=False) for temperature in TEMPERATURES]
    samples.append(sample(TEMPERATURES[-1], hard=True))
    titles = [f"soft, temperature {temperature:g}" for temperature in TEMPERATURES]
    for axis, Y, title in zip(axes, samples, [*titles, "hard"], strict=True):
        picture = axis.imshow(Y.numpy(), vmin=0, vmax=1, aspect="auto")
        axis.set_title(title, loc="left", fontsize="medium")
        axis.set_yticks(range(3), ["subset 1", "subset 2", "subset 3"])
        axis.spines[:].set_visible(False)
    axes[-1].set(xlabel="element, by descending score", xticks=range(12))
    axes[-1].set_xticklabels(range(1, 13))
    figure.colorbar(picture, ax=axes, label="share of the element", location="bottom", aspect=40)
    return figure


if __name__ == "__main__":
    draw().savefig("temperatures.png")
