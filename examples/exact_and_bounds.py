"""The exact probability of a partition and the paper's bounds: python examples/exact_and_bounds.py.

Top, 40 sampled partitions of eight elements: the bounds enclose the exact value. Bottom, the mean
distance of the bounds from the exact value for more elements.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from drpm import RandomPartition

SUBSETS = 3


def make_law(elements: int) -> RandomPartition:
    """A partition with random scores and equal weights."""
    scores = torch.randn(elements, generator=torch.Generator().manual_seed(1))
    return RandomPartition(scores.double(), torch.zeros(SUBSETS).double())


def compare(elements: int, samples: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The lower bound, the exact log-probability and the upper bound of sampled partitions."""
    law = make_law(elements)
    Y = law.sample((samples,), generator=torch.Generator().manual_seed(0))
    lower, upper = law.log_prob_bounds(Y)
    return lower, law.log_prob(Y), upper


def draw() -> Figure:
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(5, 5.6), layout="constrained")

    lower, exact, upper = compare(elements=8, samples=40)
    order = exact.argsort()
    top.vlines(range(40), lower[order], upper[order], color="C0", alpha=0.4, lw=4)
    top.plot(exact[order], "k.", ms=5)
    top.set(xlabel="partition", ylabel="log-probability", title="Bars: bounds. Dots: exact.")

    numbers = [4, 8, 16, 32, 64]
    found = [compare(elements, samples=100) for elements in numbers]
    bottom.plot(numbers, [(u - e).mean() for _, e, u in found], "o-", label="upper bound - exact")
    bottom.plot(numbers, [(e - b).mean() for b, e, _ in found], "s-", label="exact - lower bound")
    bottom.set(xlabel="number of elements", ylabel="nats", title="Mean distance", xscale="log")
    bottom.set_xticks(numbers, numbers)
    bottom.minorticks_off()
    bottom.legend()
    return figure


if __name__ == "__main__":
    draw().savefig("exact_and_bounds.png")
