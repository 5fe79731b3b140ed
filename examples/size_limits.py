"""Limits on the sizes of subsets: python examples/size_limits.py.

Twelve elements are divided into three subsets whose weights are 1, 2 and 4. A minimum and a maximum
truncate the distribution of the sizes: it stays exact, and the weights keep their meaning.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from drpm import FisherHypergeometric

ELEMENTS = 12
LOG_WEIGHTS = torch.tensor([1.0, 2.0, 4.0]).double().log()
LIMITS = {"no limits": {}, "minimum=3": {"minimum": 3}, "maximum=5": {"maximum": 5}}


def size_probs(law: FisherHypergeometric) -> Tensor:
    """The probability of every size of every subset, (3, 13)."""
    sizes = law.enumerate_support()  # (S, 3)
    probs = law.log_prob(sizes).exp()
    table = torch.zeros(3, ELEMENTS + 1).double()
    for subset in range(3):
        table[subset].index_add_(0, sizes[:, subset].long(), probs)
    return table


def draw() -> Figure:
    figure, axes = plt.subplots(3, figsize=(5, 6), sharex=True, sharey=True, layout="constrained")
    for axis, (title, limits) in zip(axes, LIMITS.items(), strict=True):
        law = FisherHypergeometric(ELEMENTS, LOG_WEIGHTS, **limits)
        for subset, probs in enumerate(size_probs(law)):
            place = torch.arange(ELEMENTS + 1) + 0.28 * (subset - 1)
            axis.bar(place.numpy(), probs.numpy(), width=0.28, label=f"weight {2**subset}")
        axis.set(title=title, ylabel="probability", xticks=range(0, ELEMENTS + 1, 2))
    axes[-1].set_xlabel("size")
    axes[0].legend()
    return figure


if __name__ == "__main__":
    draw().savefig("size_limits.png")
